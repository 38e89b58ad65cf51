"""Before the private phase: training on public, synthetic or random-process examples; no privacy is spent."""

from saltflat.warmup.contrast import Contrast
from saltflat.warmup.known import Known, WarmUp
from saltflat.warmup.pool import Pool
from saltflat.warmup.scores import Extractor, cas, judged
from saltflat.warmup.supervised import Supervised

__all__ = ["Contrast", "Extractor", "Known", "Pool", "Supervised", "WarmUp", "cas", "judged"]
