"""Training and judging cost models: data sets, losses, metrics, recipes and the loop.

`train` is the loop; `metrics.top_k` and `metrics.pairwise_accuracy` are the papers' numbers.
"""

from .config import TrainConfig, list_recipes
from .dataset import RankingDataset
from .errors import TrainingError
from .evaluation import evaluate_model, predict
from .loop import TrainResult, train
from .losses import LOSSES, get_loss
from .metrics import evaluate_random, evaluate_scores, mean_top_k, pairwise_accuracy, top_k

__all__ = [
    "LOSSES",
    "RankingDataset",
    "TrainConfig",
    "TrainResult",
    "TrainingError",
    "evaluate_model",
    "evaluate_random",
    "evaluate_scores",
    "get_loss",
    "list_recipes",
    "mean_top_k",
    "pairwise_accuracy",
    "predict",
    "top_k",
    "train",
]
