/* What a loaded library says about itself and about the processor it runs on. */
#include "info.h"

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>

int32_t evh_runs_avx2(void)
{
    unsigned eax, ebx, ecx, edx;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & bit_F16C))
        return 0;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#else
int32_t evh_runs_avx2(void)
{
    return 0;
}
#endif

const char *evh_source_digest(void)
{
    return EVH_SOURCE_DIGEST;
}
