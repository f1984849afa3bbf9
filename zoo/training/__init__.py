"""Training and judging cost models: data sets, losses, metrics, recipes and the loop.

`train` is the loop; `metrics.top_k` and `metrics.pairwise_accuracy` are the papers' numbers.
"""

from .config import TrainConfig, list_recipes
from .dataset import RankingDataset
from .errors import TrainingError
from .evaluation import evaluate_model, predict
from .loop import TrainResult, train
from .losses import get_loss
from .metrics import evaluate_random, evaluate_scores, pairwise_accuracy

__all__ = [
    "RankingDataset",
    "TrainConfig",
    "TrainResult",
    "TrainingError",
    "evaluate_model",
    "evaluate_random",
    "evaluate_scores",
    "get_loss",
    "list_recipes",
    "pairwise_accuracy",
    "predict",
    "train",
]
