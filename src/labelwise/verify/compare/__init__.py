"""Strategies against their slow references on small random problems: one table from a strategy's name to its checks."""

from labelwise.verify.case import Check
from labelwise.verify.compare import ally, bayes, cover, draws, sabal, scores

# To add a method: a slow reference in references/, a check here.
REFERENCES: dict[str, dict[str, Check]] = {
    "random": {"reference": scores.random_replayed, "law": scores.random_law},
    "confidence": {"reference": scores.confidence},
    "margin": {"reference": scores.margin},
    "entropy": {"reference": scores.entropy},
    "kcenter": {"reference": cover.kcenter},
    "badge": {"reference": cover.badge_replayed, "law": cover.badge_law},
    "typiclust": {"reference": cover.typiclust},
    "probcover": {"reference": cover.probcover},
    "dynamical": {"reference": scores.dynamical},
    "bss": {"reference": draws.bss},
    "leverage": {"reference": draws.leverage},
    "volume": {"reference": draws.volume, "law": draws.volume_law},
    "bald": {"reference": bayes.bald},
    "batchbald": {"reference": bayes.batchbald},
    "acs-fw": {"reference": bayes.acs_fw},
    "sabal-greedy": {"reference": sabal.greedy},
    "sabal-iht": {"reference": sabal.iht},
    "ally": {"reference": ally.ally},
    "bait": {"reference": ally.bait},
    "albl": {"reference": ally.albl},
}
