from qtune import quantization
from qtune.quantization import observer_v2
from qtune.quantizers.observer import Observer
from qtune.quantizers.observers import OBSERVERS

DOCUMENTED = ("min_max", "fixed_scale", "clip", "percentile", "clip_std", "mse", "kl", "mix")


def test_every_documented_name_has_its_class():
    assert set(DOCUMENTED) | {"histogram"} == set(OBSERVERS)
    assert all(issubclass(kind, Observer) for kind in OBSERVERS.values())


def test_every_observer_of_the_table_is_exported():
    exported = {getattr(observer_v2, name) for name in observer_v2.__all__}
    assert exported >= set(OBSERVERS.values())
    for name in ("MovingAverageMinMaxObserver", "MovingAveragePerChannelMinMaxObserver"):
        assert getattr(quantization, name) is getattr(observer_v2, name)
