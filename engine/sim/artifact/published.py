"""What the paper and its artifact report, for the columns beside ours.

Service difference in units per second (largest, mean, variance) and throughput in prompt and output
tokens per second: tables 2 to 4 of the paper, recomputed from the artifact's logs and equal.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Published:
    """One run of theirs."""

    largest: float
    mean: float
    variance: float
    throughput: float


RESULTS: Mapping[str, Mapping[str, Published]] = {
    "overload": {
        "FCFS": Published(447.37, 439.00, 31, 876),
        "VTC": Published(192.88, 103.77, 6_981, 893),
        "VTC (±50%)": Published(33.98, 12.54, 112, 904),
        "VTC (oracle)": Published(5.87, 0.51, 1.71, 895),
    },
    "overload-multi": {
        "FCFS": Published(247.88, 230.81, 1_084, 875),
        "VTC": Published(322.16, 162.20, 5_151, 875),
        "VTC (±50%)": Published(99.43, 66.32, 487, 875),
        "VTC (oracle)": Published(43.23, 36.34, 57, 875),
    },
    "real": {
        "FCFS": Published(759.97, 433.53, 32_112, 777),
        "LCF": Published(750.49, 323.82, 29_089, 778),
        "VTC": Published(368.40, 251.66, 6_549, 779),
        "VTC (predict)": Published(365.47, 240.33, 5_322, 773),
        "VTC (oracle)": Published(329.46, 227.51, 4_476, 781),
        "RPM 5": Published(143.86, 83.58, 1_020, 340),
        "RPM 20": Published(446.76, 195.71, 7_450, 694),
        "RPM 30": Published(693.66, 309.45, 24_221, 747),
    },
}

NOTES: Mapping[str, str] = {
    "overload": "clients get 687 : 666 units/s under VTC, 438 : 876 under FCFS",
    "proportional": "mean TTFT 5.0, 5.2 and 132 s under VTC, about 96 s for all under FCFS",
    "on-off-less": "the light client's mean TTFT is 4.1 s under VTC, 102.6 s under FCFS",
    "increase": "the steady client's mean TTFT is 0.35 s under VTC, 4.0 s under FCFS",
    "dist-shift": "while both are overloaded 679 : 679 units/s under VTC, 768 : 590 under LCF",
    "poisson-short-long": "the accumulated gap stays below 5,235 under VTC",
    "poisson-short-long-2": "the accumulated gap stays below 1,281 under VTC",
    "ablation-35k-256": "the accumulated gap stays below 25,930 under VTC",
    "ablation-35k-512": "the accumulated gap stays below 33,092 under VTC",
    "ablation-35k-768": "the accumulated gap stays below 24,360 under VTC",
    "ablation-65k-256": "the accumulated gap stays below 46,217 under VTC, 840,307 under FCFS",
    "ablation-65k-512": "the accumulated gap stays below 64,916 under VTC",
    "ablation-65k-768": "the accumulated gap stays below 46,824 under VTC",
    "real": "mean TTFT below 10 s: 7 clients of 27 under FCFS, 24 under LCF, 25 under VTC",
}
"""Another published figure of a suite, as a sentence."""
