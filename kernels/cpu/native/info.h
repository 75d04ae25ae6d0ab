/* What a loaded library says about itself and about the processor it runs on. */
#ifndef EVENHAND_INFO_H
#define EVENHAND_INFO_H

#include <stdint.h>

#pragma GCC visibility push(default)

/* SHA-256, in hexadecimal, of the sources and flags that this library was compiled from. */
const char *evh_source_digest(void);

/* Whether this processor and its system run the "avx2" library: AVX2, FMA and F16C. */
int32_t evh_runs_avx2(void);

#pragma GCC visibility pop

#endif
