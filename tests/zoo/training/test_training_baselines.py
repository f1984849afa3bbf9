"""The XGBoost baseline: the same numbers as TVM's own XGBModel, without TVM."""

import sys

import numpy as np
import pytest
from tchub.zoo.errors import MissingPackageError
from tchub.zoo.training.baselines import PackSumXGBoost


def statements(n=60, seed=0):
    """Programs of 1 to 5 statements, and labels that the sum of the first column decides."""
    rng = np.random.default_rng(seed)
    xs = [rng.standard_normal((rng.integers(1, 6), 8)).astype(np.float32) for _ in range(n)]
    return xs, np.array([1 / (1 + np.exp(-x[:, 0].sum())) for x in xs])


def test_equals_stock_metaschedule():
    stock_module = pytest.importorskip("tvm.s_tir.meta_schedule.cost_model.xgb_model")
    xs, ys = statements()
    stock = stock_module.XGBModel(num_tuning_cores=1)
    stock._train(xs=xs, ys=ys.astype("float32"))
    ours = PackSumXGBoost().fit(xs, ys)
    assert ours.booster.num_boosted_rounds() == stock.booster.num_boosted_rounds()
    np.testing.assert_array_equal(ours.predict(xs), stock._predict(xs=xs))


def test_programs_without_statements():
    xs, ys = statements(20)
    xs[3] = np.zeros((0, 8), np.float32)
    model = PackSumXGBoost(rounds=5).fit(xs, ys)
    assert model.predict(xs)[3] == 0
    assert model.predict(xs[3:4]).tolist() == [0.0]


def test_without_xgboost_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(MissingPackageError) as caught:
        PackSumXGBoost().fit(*statements(4))
    assert caught.value.remedy == "pip install xgboost-cpu"
