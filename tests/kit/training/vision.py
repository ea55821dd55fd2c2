"""Tiny vision-language models with random weights and real processors, without torchvision.

Each recipe is a family's own classes, on the tokenizer of the demo with the family's tokens added.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("PIL")

from tests.kit.checkout import DEMO_ASSETS  # noqa: E402
from tests.kit.clients.image_pictures import picture as picture  # noqa: E402
from tests.kit.data.trl_templates import TRL  # noqa: E402


def _without_torchvision(name: str) -> Any:
    """The class of an image processor that works with Pillow; transformers 4 has no other one."""
    return getattr(transformers, f"{name}Pil", None) or getattr(transformers, name)


def _trl_template(name: str) -> str:
    """TRL's template of a family; the test is skipped with a TRL that has none."""
    if name not in TRL:
        pytest.skip(f"this TRL has no chat template for {name}")
    return TRL[name]


CHATML_OF = (
    "{{% for m in messages %}}{{{{ '<|im_start|>' + m.role + '\n' }}}}"
    "{{% if m.content is string %}}{{{{ m.content }}}}{{% else %}}{{% for b in m.content %}}"
    "{{% if b.type == 'image' %}}{{{{ '{image}' }}}}{{% else %}}{{{{ b.text }}}}{{% endif %}}"
    "{{% endfor %}}{{% endif %}}{{{{ '<|im_end|>\n' }}}}{{% endfor %}}"
    "{{% if add_generation_prompt %}}{{{{ '<|im_start|>assistant\n' }}}}{{% endif %}}"
)


def chatml(image: str) -> str:
    """ChatML that writes `image` for each image block, whatever the role."""
    return CHATML_OF.format(image=image)


INST = (
    "{% for m in messages %}{{ '[INST]' if m.role == 'user' }}{% if m.content is string %}"
    "{{ m.content }}{% else %}{% for b in m.content %}"
    "{{ '<image>' if b.type == 'image' else b.text }}{% endfor %}{% endif %}"
    "{{ '</s>' if m.role == 'assistant' else '[/INST]' }}{% endfor %}"
)
"""As Mistral's, whose tokens stand directly beside the text."""


def tokenizer_with(*tokens: str, folder: Any = DEMO_ASSETS, **named: str) -> Any:
    """A tokenizer with more control tokens; `named` ones are attributes of it as well."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": [*tokens, *named.values()]})
    for name, token in named.items():
        setattr(tokenizer, name, token)
        setattr(tokenizer, f"{name}_id", tokenizer.convert_tokens_to_ids(token))
    return tokenizer


def text_config(tokenizer: Any, **changes: Any) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
    } | changes


CLIP = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}


def rope_of_transformers_4(rope: dict[str, Any]) -> dict[str, Any]:
    """The same where `rope_parameters` are not known."""
    if not transformers.__version__.startswith("4."):
        return {}
    return {"rope_scaling": rope, "rope_theta": rope["rope_theta"]}


MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}


class Family(NamedTuple):
    """A processor and what makes its model."""

    processor: Any
    model: Callable[[], Any]


def llava(folder: Any = DEMO_ASSETS, chat_template: str | None = None, **changes: Any) -> Family:
    tokenizer = tokenizer_with("<image>", folder=folder)
    processor = transformers.LlavaProcessor(
        _without_torchvision("CLIPImageProcessor")(
            size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
        ),
        tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=chat_template or chatml("<image>"),
    )

    def model() -> Any:
        config = transformers.LlavaConfig(
            text_config=transformers.Qwen3Config(**text_config(tokenizer, **changes)),
            image_token_index=processor.image_token_id,
            vision_feature_layer=-1,
            vision_config=transformers.CLIPVisionConfig(**CLIP),
        )
        return transformers.LlavaForConditionalGeneration(config)

    return Family(processor, model)


def llava_next() -> Family:
    tokenizer = tokenizer_with("<image>", "<s>", "</s>")
    processor = transformers.LlavaNextProcessor(
        _without_torchvision("LlavaNextImageProcessor")(
            size={"shortest_edge": 32},
            crop_size={"height": 32, "width": 32},
            image_grid_pinpoints=[[32, 64], [64, 32], [64, 64]],
        ),
        tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=chatml("<image>"),
    )

    def model() -> Any:
        config = transformers.LlavaNextConfig(
            text_config=transformers.Qwen3Config(**text_config(tokenizer)),
            image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
            vision_feature_layer=-1,
            image_grid_pinpoints=[[32, 64], [64, 32], [64, 64]],
            vision_config=transformers.CLIPVisionConfig(**CLIP),
        )
        return transformers.LlavaNextForConditionalGeneration(config)

    return Family(processor, model)


def without_video(processor_class: type) -> type:
    """The class of a processor that takes None as its video processor, which wants torchvision."""

    def check(self: Any, name: str, value: Any) -> Any:
        return type(value)

    return type(
        processor_class.__name__, (processor_class,), {"check_argument_for_proper_class": check}
    )


QWEN = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
QWEN_CHATML = chatml("<|vision_start|><|image_pad|><|vision_end|>")
"""For versions of TRL without a template of its own."""


def _qwen(kind: str, **changes: Any) -> Family:
    if transformers.__version__.startswith("5.3."):
        pytest.skip("transformers 5.3 gives rows without images the offsets of the last images")
    tokenizer = tokenizer_with(*QWEN)
    names = {"qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL"}
    name = names[kind]
    qwen3 = kind == "qwen3_vl"
    processor = without_video(getattr(transformers, f"{name}Processor"))(
        _without_torchvision("Qwen2VLImageProcessor")(
            patch_size=4, merge_size=2, size={"shortest_edge": 256, "longest_edge": 4096}
        ),
        tokenizer,
        None,
        chat_template=TRL.get(kind, QWEN_CHATML),
    )

    def model() -> Any:
        text = text_config(tokenizer, **{"rope_parameters": MROPE} | changes)
        text.pop("head_dim")
        rope = text["rope_parameters"] | ({"mrope_interleaved": True} if qwen3 else {})
        vision: dict[str, Any] = {
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 4,
            "patch_size": 4,
            "out_hidden_size": text["hidden_size"],
        }
        if qwen3:
            text["head_dim"] = 8
            vision |= {"num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
        else:
            vision |= {"window_size": 16, "fullatt_block_indexes": [1]}
        start, end, image, video = tokenizer.convert_tokens_to_ids(list(QWEN))
        config = getattr(transformers, f"{name}Config")(
            text_config=text | rope_of_transformers_4(rope) | {"rope_parameters": rope},
            vision_config=vision,
            image_token_id=image,
            video_token_id=video,
            vision_start_token_id=start,
            vision_end_token_id=end,
        )
        return getattr(transformers, f"{name}ForConditionalGeneration")(config)

    return Family(processor, model)


def qwen2_5_vl(**changes: Any) -> Family:
    return _qwen("qwen2_5_vl", **changes)


def qwen3_vl() -> Family:
    return _qwen("qwen3_vl")


GLM = ("<|begin_of_image|>", "<|end_of_image|>", "<|image|>", "<|video|>", "<|begin_of_video|>")


def glm4v() -> Family:
    tokenizer = tokenizer_with(*GLM, "<|end_of_video|>")
    processor = without_video(transformers.Glm4vProcessor)(
        _without_torchvision("Glm4vImageProcessor")(
            patch_size=4, merge_size=2, size={"shortest_edge": 256, "longest_edge": 8192}
        ),
        tokenizer,
        None,
        chat_template=chatml("<|begin_of_image|><|image|><|end_of_image|>"),
    )

    def model() -> Any:
        ids = tokenizer.convert_tokens_to_ids([*GLM, "<|end_of_video|>"])
        text = text_config(tokenizer) | {"rope_parameters": MROPE}
        text.pop("head_dim")
        config = transformers.Glm4vConfig(
            text_config=text,
            vision_config={
                "depth": 2,
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_heads": 4,
                "patch_size": 4,
                "image_size": 32,
                "out_hidden_size": 32,
            },
            image_start_token_id=ids[0],
            image_end_token_id=ids[1],
            image_token_id=ids[2],
            video_token_id=ids[3],
            video_start_token_id=ids[4],
            video_end_token_id=ids[5],
        )
        return transformers.Glm4vForConditionalGeneration(config)

    return Family(processor, model)


def gemma3() -> Family:
    tokenizer = tokenizer_with(
        "<start_of_turn>",
        "<end_of_turn>",
        boi_token="<start_of_image>",
        eoi_token="<end_of_image>",
        image_token="<image_soft_token>",
    )
    tokenizer.eos_token = "<end_of_turn>"
    processor = transformers.Gemma3Processor(
        _without_torchvision("Gemma3ImageProcessor")(size={"height": 32, "width": 32}),
        tokenizer,
        image_seq_length=4,
        chat_template=_trl_template("gemma3"),
    )

    def model() -> Any:
        config = transformers.Gemma3Config(
            text_config=text_config(tokenizer, query_pre_attn_scalar=8, sliding_window=512),
            vision_config={**CLIP, "patch_size": 8, "model_type": "siglip_vision_model"},
            mm_tokens_per_image=4,
            image_token_index=tokenizer.image_token_id,
            boi_token_index=tokenizer.boi_token_id,
            eoi_token_index=tokenizer.eoi_token_id,
        )
        made = transformers.Gemma3ForConditionalGeneration(config)
        torch.nn.init.normal_(made.model.multi_modal_projector.mm_input_projection_weight, std=0.2)
        return made

    return Family(processor, model)


def internvl() -> Family:
    tokenizer = tokenizer_with(
        start_image_token="<img>",
        end_image_token="</img>",
        context_image_token="<IMG_CONTEXT>",
        video_token="<video>",
    )
    processor = without_video(transformers.InternVLProcessor)(
        _without_torchvision("GotOcr2ImageProcessor")(
            size={"height": 32, "width": 32}, crop_to_patches=True, max_patches=4
        ),
        tokenizer,
        None,
        image_seq_length=4,
        chat_template=chatml("<IMG_CONTEXT>"),
    )

    def model() -> Any:
        config = transformers.InternVLConfig(
            text_config=transformers.Qwen2Config(**text_config(tokenizer)),
            vision_config={
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "image_size": [32, 32],
                "patch_size": [8, 8],
            },
            image_token_id=tokenizer.context_image_token_id,
            image_seq_length=4,
            downsample_ratio=0.5,
        )
        return transformers.InternVLForConditionalGeneration(config)

    return Family(processor, model)


IDEFICS = ("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>")
TAGS = tuple(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7))


def _idefics(kind: str) -> Family:
    tokenizer = tokenizer_with(*IDEFICS, *TAGS, "<|begin_of_text|>")
    tokenizer.eos_token = "<end_of_utterance>"
    smol = kind == "smolvlm"
    images = (
        _without_torchvision("SmolVLMImageProcessor")
        if smol
        else _without_torchvision("Idefics3ImageProcessor")
    )(size={"longest_edge": 96}, max_image_size={"longest_edge": 32})
    template = _trl_template("smolvlm" if smol else "idefics3")
    if smol:
        module = transformers.models.smolvlm.processing_smolvlm
        module.num2words = module.num2words or str  # a package that videos alone need
        for name, token in (
            ("fake_image_token", "<fake_token_around_image>"),
            ("image_token", "<image>"),
            ("end_of_utterance_token", "<end_of_utterance>"),
            ("global_image_token", "<global-img>"),
            ("video_token", "<video>"),
        ):
            setattr(tokenizer, name, token)
        processor = without_video(transformers.SmolVLMProcessor)(
            images, tokenizer, None, image_seq_len=4, chat_template=template
        )
    else:
        processor = transformers.Idefics3Processor(
            images, tokenizer, image_seq_len=4, chat_template=template
        )

    def model() -> Any:
        name = "SmolVLM" if smol else "Idefics3"
        text = text_config(tokenizer)
        config = getattr(transformers, f"{name}Config")(
            text_config={**text, "model_type": "llama"},
            vision_config={**CLIP},
            image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
            scale_factor=2,
            tie_word_embeddings=False,
            pad_token_id=tokenizer.pad_token_id,
        )
        return getattr(transformers, f"{name}ForConditionalGeneration")(config)

    return Family(processor, model)


def idefics3() -> Family:
    return _idefics("idefics3")


def smolvlm() -> Family:
    return _idefics("smolvlm")


FAMILIES: dict[str, Callable[[], Family]] = {
    made.__name__: made
    for made in (
        llava,
        qwen2_5_vl,
        qwen3_vl,
        glm4v,
        gemma3,
        internvl,
        idefics3,
        smolvlm,
        llava_next,
    )
}


def model_of(family: Family) -> Any:
    """The family's model in eval mode, with weights so large that pixels change what it says."""
    torch.manual_seed(0)
    model = family.model().eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    return model


def own_logprobs(
    model: Any, hf_processor: Any, row: Any, images: Any, *, never: Any = (), **changes: Any
) -> Any:
    """`(T - 1,)` float32: the logprob of each token of a row but the first, by one plain forward.

    Args:
        model: in eval mode.
        hf_processor: makes the tensors of the row's images itself.
        row: `(T,)` ids.
        images: PIL images.
        never: ids that are not drawn.
        changes: of the model's arguments; None leaves one out.
    """
    from abut.template import ImageProcessor

    inputs: dict[str, Any] = {}
    ids = torch.as_tensor(np.array(row))[None]
    if images:
        placeholder = ImageProcessor(hf_processor).placeholder
        made = hf_processor(
            text=[placeholder * len(images)], images=[list(images)], return_tensors="pt"
        )
        inputs = {k: v for k, v in made.items() if k not in ("input_ids", "attention_mask")}
        for key in [key for key in inputs if key.endswith("token_type_ids")]:
            typed = made["input_ids"][inputs[key] == 1].unique().tolist()
            # Tokenizers of transformers 4 return zeros, which models without types do not take.
            inputs[key] = (ids == typed[0]).long() if typed else None
    inputs |= {"input_ids": ids, "attention_mask": torch.ones_like(ids), **changes}
    given = {k: v.to(model.device) for k, v in inputs.items() if v is not None}
    with torch.no_grad():
        logits = model(**given).logits
    logits = logits[0, :-1].float().cpu()
    logits[:, list(never)] = -torch.inf
    return torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0]
