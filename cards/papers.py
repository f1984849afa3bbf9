"""What to cite for an architecture."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Paper:
    """A paper, as a line of text and as BibTeX.

    Attributes:
        authors: full names, in their order; venue: where it appeared; kind: the type of its BibTeX entry.
    """

    key: str
    authors: tuple[str, ...]
    title: str
    venue: str
    year: int
    kind: str = "inproceedings"

    @property
    def text(self) -> str:
        """One line: the first author or two, title, venue and year."""
        first, *others = [_short(name) for name in self.authors]
        names = first if not others else f"{first}, {others[0]}" if len(others) == 1 else f"{first} et al"
        return f"{names}. {self.title}. {self.venue}, {self.year}."

    @property
    def bibtex(self) -> str:
        """The BibTeX entry."""
        where = "booktitle" if self.kind == "inproceedings" else "journal"
        return entry(
            self.kind, self.key,
            {"author": " and ".join(self.authors), "title": f"{{{self.title}}}", where: self.venue, "year": self.year},
        )  # fmt: skip


def entry(kind: str, key: str, fields: dict[str, object]) -> str:
    """A BibTeX entry of some fields; those that are empty are left out."""
    lines = [f"  {name} = {{{value}}}" for name, value in fields.items() if value]
    return "\n".join([f"@{kind}{{{key},", ",\n".join(lines), "}"])


def _short(name: str) -> str:
    *given, family = name.split()
    return " ".join([*(f"{word[0]}." for word in given), family])


_TLP = Paper(
    "zhai2023tlp",
    ("Yi Zhai", "Yu Zhang", "Shuo Liu", "Xiaomeng Chu", "Jie Peng", "Jianmin Ji", "Yanyong Zhang"),
    "TLP: A Deep Learning-based Cost Model for Tensor Program Tuning",
    "ASPLOS",
    2023,
)
_ATFORMER = Paper(
    "bai2023atformer",
    ("Yang Bai", "Wenqian Zhao", "Shuo Yin", "Zixiao Wang", "Bei Yu"),
    "ATFormer: A Learned Performance Model with Transfer Learning Across Devices for Deep Learning Tensor Programs",
    "EMNLP",
    2023,
)
_TCL = Paper(
    "shen2026tcl",
    (
        "Chaoyao Shen", "Linfeng Jiang", "Yixian Shen", "Tao Xu", "Guoqing Li", "Anuj Pathania", "Andy D. Pimentel",
        "Meng Zhang",
    ),
    "TCL: Enabling Fast and Efficient Cross-Hardware Tensor Program Optimization via Continual Learning",
    "arXiv:2604.12891",
    2026,
    "article",
)  # fmt: skip
_TENSET = Paper(
    "zheng2021tenset",
    (
        "Lianmin Zheng", "Ruochen Liu", "Junru Shao", "Tianqi Chen", "Joseph E. Gonzalez", "Ion Stoica",
        "Ameer Haj Ali",
    ),
    "TenSet: A Large-scale Program Performance Dataset for Learned Tensor Compilers",
    "NeurIPS Datasets and Benchmarks Track",
    2021,
)  # fmt: skip
_TABNET = Paper(
    "arik2021tabnet",
    ("Sercan O. Arik", "Tomas Pfister"),
    "TabNet: Attentive Interpretable Tabular Learning",
    "AAAI",
    2021,
)
_XGBOOST = Paper(
    "chen2016xgboost", ("Tianqi Chen", "Carlos Guestrin"), "XGBoost: A Scalable Tree Boosting System", "KDD", 2016
)
_LIGHTGBM = Paper(
    "ke2017lightgbm",
    (
        "Guolin Ke", "Qi Meng", "Thomas Finley", "Taifeng Wang", "Wei Chen", "Weidong Ma", "Qiwei Ye", "Tie-Yan Liu",
    ),
    "LightGBM: A Highly Efficient Gradient Boosting Decision Tree",
    "NeurIPS",
    2017,
)  # fmt: skip
_COMMITTEE = Paper(
    "hansen1990committee",
    ("Lars Kai Hansen", "Peter Salamon"),
    "Neural Network Ensembles",
    "IEEE Transactions on Pattern Analysis and Machine Intelligence",
    1990,
    "article",
)
_PAPERS = {
    "tcl": _TCL,
    "tlp": _TLP,
    "mtl-tlp": _TLP,
    "lstm": _TLP,
    "mha": _ATFORMER,
    "atformer-1l": _ATFORMER,
    "atformer": _ATFORMER,
    "atformer-m": _ATFORMER,
    "tenset-mlp": _TENSET,
    "tabnet": _TABNET,
    "xgboost": _XGBOOST,
    "lightgbm": _LIGHTGBM,
}

# Of what is made of several networks, by the end of its name.
_METHODS = {"-kb": _TCL, "-committee": _COMMITTEE}


def network_of(arch: str) -> str:
    """The architecture of the networks that a knowledge base or a committee is made of; any other as it is."""
    return next((arch.removesuffix(suffix) for suffix in _METHODS if arch.endswith(suffix)), arch)


def papers_of(arch: str) -> tuple[Paper, ...]:
    """What to cite for an architecture: nothing for one of tchub's own.

    For a knowledge base TCL's method too, and for a committee the idea of it.
    """
    own = _PAPERS.get(network_of(arch))
    method = next((paper for suffix, paper in _METHODS.items() if arch.endswith(suffix)), None)
    return tuple(dict.fromkeys(paper for paper in (own, method) if paper))
