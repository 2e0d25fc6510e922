"""Large values in object storage, around any store. Needs the extra ``objects``."""

from milecastle.stores.offloading.capabilities import offload
from milecastle.stores.offloading.objects import ObjectStorage, SharedObjects
from milecastle.stores.offloading.store import OffloadingStore
from milecastle.stores.offloading.sweeping import SweepReport, sweep

__all__ = ["ObjectStorage", "OffloadingStore", "SharedObjects", "SweepReport", "offload", "sweep"]
