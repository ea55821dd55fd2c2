"""What `abut check` says about the images of a model."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from abut.audit.printed import lines
from abut.audit.verdict import audit
from abut.cli.__main__ import main
from abut.nemo_gym.doctor import _of_images
from abut.template.image_report import report_model_images
from tests.kit.checkout import DEMO_ASSETS
from tests.kit.training.vision import chatml, llava, qwen2_5_vl


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The folder of a LLaVA whose pictures have 16 features each."""
    llava().processor.save_pretrained(tmp_path)
    return tmp_path


def test_a_models_folder_tells_its_processor_roles_and_tokens(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(model)]) == 0
    page = capsys.readouterr().out
    assert (
        "images: LlavaProcessor is proved\n"
        "  placeholder        <image>\n"
        "  media token        <image>\n"
        "  roles              user, tool, system\n"
        "  tokens             224x224: 16, 448x448: 16, 640x480: 16, 1280x1024: 16, 1920x1080: 16\n"
    ) in page
    assert main(["check", str(model), "--json"]) == 0
    images = json.loads(capsys.readouterr().out)["images"]
    assert (images["refused"], images["tokens"]["640x480"]) == (None, 16)
    found = report_model_images(model)
    assert found is not None
    assert str(_of_images(found)) == (
        "images: LlavaProcessor was checked and works, in messages of user, tool, system; tokens: "
        "16 for 224x224, 16 for 448x448, 16 for 640x480, 16 for 1280x1024, 16 for 1920x1080"
    )


def test_tokens_follow_the_size_of_a_picture_where_the_processor_does() -> None:
    images = audit(qwen2_5_vl().processor).images
    assert images is not None
    assert images.tokens is not None
    # 8 pixels a token, scaled down to 4096 pixels: 64 tokens, less what rounding of sides takes.
    assert images.tokens["224x224"] == 64
    assert len(set(images.tokens.values())) > 1


def test_a_role_without_images_is_said_with_its_reason() -> None:
    users_alone = chatml("<image>").replace(
        "b.type == 'image'", "b.type == 'image' and m.role == 'user'"
    )
    users_alone = users_alone.replace("{{ b.text }}", "{{ b.text or '' }}")
    images = audit(llava(chat_template=users_alone).processor).images
    assert images is not None
    assert images.roles == ("user",)
    assert [note.partition(": ")[0] for note in images.notes] == [
        "the template does not write images in tool messages",
        "the template does not write images in system messages",
    ]
    assert "0 placeholders ('<image>') for the 1 images" in images.notes[0]


def test_a_refusal_has_both_texts_and_leaves_the_verdict_on_text() -> None:
    # As some templates do: it numbers the pictures, so the second is not written as the first.
    numbered = "{% set ns = namespace(k=0) %}" + chatml("<image>").replace(
        "{{ '<image>' }}", "{% set ns.k = ns.k + 1 %}{{ 'Picture ' ~ ns.k ~ ': <image>' }}"
    )
    found = audit(llava(chat_template=numbered).processor)
    assert found.images is not None
    assert found.images.refused is not None
    assert "Picture 2" in found.images.refused
    page = "\n".join(lines(found))
    assert "images: LlavaProcessor is REFUSED, so train the model only on text\n  " in page
    assert "Picture 2" in page
    assert found.exact
    finding = _of_images(found.images)
    assert finding.level == "warning"
    assert "Picture 2" in finding.what


def test_a_processor_that_cannot_be_loaded_is_refused_and_the_text_is_judged(model: Path) -> None:
    (model / "processor_config.json").write_text('{"processor_class": "LlavaProcessor", "image_pr')
    found = audit(model)
    assert found.images is not None
    assert "its processor cannot be loaded: " in str(found.images.refused)
    assert found.exact


@pytest.mark.parametrize("source", [DEMO_ASSETS, DEMO_ASSETS / "tokenizer.json"])
def test_of_a_model_without_images_nothing_is_said(source: Any) -> None:
    assert report_model_images(source) is None
    assert "image" not in "\n".join(lines(audit(source)))
