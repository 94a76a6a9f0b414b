import numpy as np

from qtune.arith.moments import deviation_range


def test_deviation_range_is_mean_plus_deviations_up_to_the_largest():
    data = np.array([2.0, 4.0, 6.0, 100.0, np.inf], dtype=np.float32)
    finite = data[:4].astype(np.float64)
    assert deviation_range(data, 1.0) == np.float32(finite.mean() + finite.std())
    assert deviation_range(-data, 1.0) == deviation_range(data, 1.0)
    assert deviation_range(data, 50.0) == 100.0
    assert deviation_range([7.0], 3.0) == 7.0
