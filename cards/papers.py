"""What to cite for an architecture."""

from __future__ import annotations

_TLP = "Y. Zhai et al. TLP: A Deep Learning-based Cost Model for Tensor Program Tuning. ASPLOS 2023."
_ATFORMER = (
    "Y. Bai, W. Zhao, S. Yin, Z. Wang, B. Yu. ATFormer: A Learned Performance Model with Transfer Learning Across "
    "Devices for Deep Learning Tensor Programs. EMNLP 2023."
)
_PAPERS = {
    "tcl": "C. Shen et al. TCL: Enabling Fast and Efficient Cross-Hardware Tensor Program Optimization via Continual "
    "Learning. arXiv:2604.12891, 2026.",
    "tlp": _TLP,
    "mtl-tlp": _TLP,
    "lstm": _TLP,
    "mha": _ATFORMER,
    "atformer-1l": _ATFORMER,
    "atformer": _ATFORMER,
    "atformer-m": _ATFORMER,
    "tenset-mlp": "L. Zheng et al. TenSet: A Large-scale Program Performance Dataset for Learned Tensor Compilers. "
    "NeurIPS Datasets and Benchmarks 2021.",
    "tabnet": "S. O. Arik, T. Pfister. TabNet: Attentive Interpretable Tabular Learning. AAAI 2021.",
    "xgboost": "T. Chen, C. Guestrin. XGBoost: A Scalable Tree Boosting System. KDD 2016.",
    "lightgbm": "G. Ke et al. LightGBM: A Highly Efficient Gradient Boosting Decision Tree. NeurIPS 2017.",
}


def papers_of(arch: str) -> tuple[str, ...]:
    """What to cite for an architecture: nothing for one of tchub's own, for a knowledge base TCL's method too."""
    method = [_PAPERS["tcl"]] if arch.endswith("-kb") else []
    own = _PAPERS.get(arch.removesuffix("-kb"))
    return tuple(dict.fromkeys([*([own] if own else []), *method]))
