"""Licences by the names that the Hugging Face Hub knows."""

from __future__ import annotations

# https://huggingface.co/docs/hub/repositories-licenses
_KNOWN = """
apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m
afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5
cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0
cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0
cdla-permissive-1.0 cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl
gpl gpl-2.0 gpl-3.0 lgpl lgpl-2.1 lgpl-3.0 isc intel-research lppl-1.3c ms-pl mpl-2.0 odc-by odbl openrail++
osl-3.0 postgresql ofl-1.1 ncsa unlicense zlib pddl unknown other
"""
HUB_LICENCES = frozenset(_KNOWN.split())


def hub_licence(spdx: str | None) -> tuple[str | None, str | None]:
    """The `license` and `license_name` of a card's head: one that the Hub does not know is `other`, with its own name.

    Args:
        spdx: an SPDX id, such as `Apache-2.0` or `GPL-3.0-only`; None when there is none.
    """
    if spdx is None:
        return None, None
    name = spdx.lower().removesuffix("-only").removesuffix("-or-later")
    return (name, None) if name in HUB_LICENCES else ("other", spdx.lower())
