"""The Dockerfile: clean by hadolint, pinned, not root, and made of what the repository lets through to the builder."""

from __future__ import annotations

import re

import pytest

from tests.deploy.programs import ROOT, call, program

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
TEXT = DOCKERFILE.read_text(encoding="utf-8").replace("\\\n", " ")
LINES = [line for line in TEXT.splitlines() if line and not line.startswith("#")]


def instructions(name: str) -> list[str]:
    """What follows each instruction of a name, in order."""
    return [line.partition(" ")[2] for line in LINES if line.startswith(f"{name} ")]


def copied() -> list[str]:
    """What comes from the repository."""
    sources = [line.split()[:-1] for line in instructions("COPY") if not line.startswith("--from=")]
    return [source for names in sources for source in names]


def test_dockerfile_is_clean_by_hadolint() -> None:
    done = call(program("hadolint"), DOCKERFILE)
    assert (done.returncode, done.stdout) == (0, "")


def test_everything_that_is_copied_is_there_and_reaches_the_builder() -> None:
    rules = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert rules[1] == "*"
    let_through = {rule[1:] for rule in rules if rule.startswith("!")}
    assert copied()
    for source in copied():
        assert (ROOT / source).exists(), source
    assert set(copied()) == let_through


def test_image_runs_as_a_number_that_is_not_root() -> None:
    users = instructions("USER")
    assert [re.fullmatch(r"[1-9]\d+:[1-9]\d+", user) is not None for user in users] == [True]
    last_stage = TEXT.rindex("\nFROM ")
    assert TEXT.index("\nUSER ") > last_stage


def test_chart_runs_pods_as_the_user_of_the_image() -> None:
    (user,) = instructions("USER")
    values = (ROOT / "helm" / "nereus" / "values.yaml").read_text(encoding="utf-8")
    uid, gid = user.split(":")
    assert f"runAsUser: {uid}\n" in values
    assert f"runAsGroup: {gid}\n" in values


def test_base_is_pinned_to_a_patch_and_other_stages_are_of_this_file() -> None:
    (python,) = [argument.partition("=")[2] for argument in instructions("ARG") if argument.startswith("PYTHON=")]
    assert re.fullmatch(r"3\.11\.\d+-slim-bookworm", python)
    stages = {line.rpartition(" AS ")[2] for line in instructions("FROM")}
    for line in instructions("FROM"):
        base = line.partition(" ")[0]
        assert base == "python:${PYTHON}" or base == "torch-${ACCELERATOR}" or base in stages


def test_torch_is_of_the_version_that_was_tested() -> None:
    (tested,) = re.findall(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"torch==(\S+)", TEXT)) == {tested}
    locked = (ROOT / "requirements" / "cuda.txt").read_text(encoding="utf-8")
    assert re.search(rf"^torch=={re.escape(tested)} ", locked, re.MULTILINE)


def test_what_has_a_lock_is_installed_by_its_digests() -> None:
    installs = [line for line in instructions("RUN") if "pip install" in line]
    assert len(installs) == 5
    for line in installs:
        by_digest = "--require-hashes" in line and "--requirement /lock/" in line
        own_index = "--index-url" in line and "torch==" in line
        wheel = "--no-deps /wheel/" in line
        assert by_digest or own_index or wheel, line


@pytest.mark.parametrize("accelerator", ["cuda", "rocm", "cpu"])
def test_every_accelerator_has_its_stage(accelerator: str) -> None:
    assert f"packages AS torch-{accelerator}" in instructions("FROM")


def test_layers_of_the_package_come_last() -> None:
    """A new version of Nereus must not push torch's gigabytes again."""
    last = TEXT[TEXT.rindex("\nFROM ") :]
    assert last.index("COPY --from=torch") < last.index("/wheel/*.whl")
    assert "/wheel" not in TEXT[: TEXT.index("AS wheel")]
