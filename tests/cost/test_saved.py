"""What was learnt, in a file and back."""

from __future__ import annotations

import json
from pathlib import Path

from nereus.cost.accelerator import AcceleratorModel
from nereus.cost.efficiency import Efficiencies
from nereus.cost.operations import OpClass
from nereus.cost.priors import shipped
from nereus.cost.saved import NAMES, as_json, from_json
from nereus.cost.training import training_workload
from nereus.spec.efficiencies_file import read_efficiencies
from tests.cost.accelerators import LLAMA_8B, execution


def test_what_was_learnt_comes_back_from_its_file_by_kind_and_role(tmp_path: Path) -> None:
    works = [training_workload(execution(tp=tp, dp=8 // tp), LLAMA_8B) for tp in (1, 2, 4)]
    learnt = {
        ("H100", "training"): AcceleratorModel(Efficiencies("H100").learn(works, [9.0, 10.0, 12.0])),
        ("H100", "generation"): AcceleratorModel(shipped("H100")),
        ("A100-80GB", "training"): AcceleratorModel(shipped("A100-80GB")),
    }
    path = tmp_path / "e.json"
    path.write_text(json.dumps(as_json(learnt)), encoding="utf-8")
    again = from_json(read_efficiencies(path, NAMES))
    assert again == learnt
    assert again["H100", "training"].efficiencies.values[OpClass.GEMM].observations == 3
    assert again["H100", "training"].efficiencies.values[OpClass.TP_NODE].observations == 2, "no TP, no collectives"
