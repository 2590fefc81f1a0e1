import dataclasses
import json

import pytest

from learner.adapter_files import AdapterManifest, seal, stage
from learner.adapter_format import inspect
from learner.foreign import inspect_foreign
from memory.errors import AdapterError
from tests.learner.adapters import (
    BASE_SHAPES,
    FIT,
    adapter_config,
    adapter_tensors,
    write_adapter,
)

FIRST_A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
FIRST_B = FIRST_A.replace("lora_A", "lora_B")


@pytest.fixture
def exported(tmp_path):
    """A folder as another Denizen has it: with its manifest."""
    staging = write_adapter(stage(tmp_path / "other"))
    facts = inspect(staging)
    name = "denizen-000009"
    seal(
        staging,
        tmp_path / "other",
        name,
        facts,
        base_digest=FIT.base_digest,
        parent="denizen-000008",
    )
    return tmp_path / "other" / name


def rewrite(path, **changes):
    fields = json.loads(path.read_text("utf-8")) | changes
    path.write_text(json.dumps(fields), encoding="utf-8")


def test_a_folder_of_another_denizen_on_the_same_base_is_accepted(exported):
    facts = inspect_foreign(exported, FIT)
    assert (facts.rank, facts.alpha, facts.target_modules) == (2, 4, ("down_proj", "q_proj"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lora_alpha": 64}, "alpha is expected as 4, found 64"),
        ({"lora_dropout": 0.5}, "config_sha256 is expected as"),
    ],
)
def test_a_configuration_changed_after_training_is_refused(exported, changes, message):
    rewrite(exported / "adapter_config.json", **changes)
    with pytest.raises(AdapterError, match=message):
        inspect_foreign(exported, FIT)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base_digest": "c" * 64}, "another base model: base_digest is expected as bbb.* found c"),
        ({"sha256": "0" * 64}, "sha256 is expected as 000"),
        ({"rank": 3}, "rank is expected as 3, found 2"),
        ({"target_modules": ["q_proj"]}, "target_modules is expected as"),
        ({"size_bytes": None}, "size_bytes is expected as None"),
        ({"an_extra_key": 1}, "no adapter's manifest"),
        ({"target_modules": None}, "no adapter's manifest"),
    ],
)
def test_a_manifest_that_says_otherwise_is_refused_naming_both(exported, changes, message):
    rewrite(exported / "manifest.json", **changes)
    with pytest.raises(AdapterError, match=message):
        inspect_foreign(exported, FIT)


def test_a_removed_key_is_refused_with_and_without_a_manifest(exported):
    tensors = adapter_tensors()
    del tensors[FIRST_A], tensors[FIRST_B]
    write_adapter(exported, tensors)
    for _ in range(2):
        with pytest.raises(AdapterError, match=r"q_proj is expected as \(6, 4\) .* found None"):
            inspect_foreign(exported, FIT)
        (exported / "manifest.json").unlink(missing_ok=True)


@pytest.mark.parametrize(
    "name",
    [None, "", "base", "acme/Tiny-Instruct", "/home/me/tiny-instruct/", "C:\\m\\TINY-INSTRUCT"],
)
def test_without_a_manifest_the_base_may_go_by_its_own_name_or_by_none(tmp_path, name):
    write_adapter(tmp_path, config=adapter_config(base_model_name_or_path=name))
    assert inspect_foreign(tmp_path, FIT).rank == 2


@pytest.mark.parametrize("name", ["acme/Tiny", "/models/other", "tiny-instruct/v2", 7, ["base"]])
def test_without_a_manifest_another_bases_name_is_refused_saying_how_to_mend(tmp_path, name):
    write_adapter(tmp_path, config=adapter_config(base_model_name_or_path=name))
    with pytest.raises(AdapterError, match=r"expected as .*'tiny-instruct'.*found .* to null"):
        inspect_foreign(tmp_path, FIT)


def test_a_proven_base_may_go_by_any_name(tmp_path):
    root = tmp_path / "other"
    staging = stage(root)
    write_adapter(staging, config=adapter_config(base_model_name_or_path="another/name"))
    facts = inspect(staging)
    seal(staging, root, "denizen-000001", facts, base_digest=FIT.base_digest, parent="base")
    assert inspect_foreign(root / "denizen-000001", FIT) == facts


def test_a_rank_above_the_engines_is_refused_naming_both(tmp_path):
    write_adapter(tmp_path, adapter_tensors(rank=8), adapter_config(r=8))
    with pytest.raises(AdapterError, match=r"rank 8.*4 \(engine.max_lora_rank\)"):
        inspect_foreign(tmp_path, FIT)


def test_an_adapter_whose_targets_are_whole_paths_is_read_as_peft_reads_it(tmp_path):
    """peft saves all-linear of a small model so."""
    config = adapter_config(target_modules=sorted(BASE_SHAPES))
    write_adapter(tmp_path, config=config)
    assert inspect_foreign(tmp_path, FIT).target_modules == tuple(sorted(BASE_SHAPES))
    tensors = adapter_tensors()
    del tensors[FIRST_A], tensors[FIRST_B]
    write_adapter(tmp_path, tensors, config)
    with pytest.raises(AdapterError, match="expected weights for"):
        inspect_foreign(tmp_path, FIT)


def test_a_manifest_through_a_link_is_refused_unread(exported, tmp_path):
    (exported / "manifest.json").unlink()
    (tmp_path / "elsewhere.json").write_text("not to be read", encoding="utf-8")
    (exported / "manifest.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(AdapterError, match="plain files"):
        inspect_foreign(exported, FIT)


def test_every_field_that_a_manifest_shares_with_the_files_is_compared():
    shared = {field.name for field in dataclasses.fields(AdapterManifest)}
    assert shared - {"version", "parent", "base_digest"} == {
        "sha256",
        "config_sha256",
        "size_bytes",
        "rank",
        "alpha",
        "target_modules",
    }
