"""A transformers `config.json` is a network: its inputs and outputs by name, and none of its repository's code."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from tchub.hub.networks.errors import NetworkImportError
from tchub.hub.networks.frontend.transformers_config import settle_batch_norms
from tchub.hub.networks.sources import open_network
from tiny_network import Touch
from torch import nn

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 50}
BERT = {"model_type": "bert", "architectures": ["BertModel"], "max_position_embeddings": 12} | SMALL
TEXT, VISION = SMALL | {"max_position_embeddings": 8}, SMALL | {"image_size": 16, "patch_size": 8}
SEQ2SEQ = {
    "vocab_size": 50, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 8,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip


def folder_of(tmp_path: Path, config: Any, name: str = "mine") -> Path:
    (tmp_path / name).mkdir()
    (tmp_path / name / "config.json").write_text(json.dumps(config))
    return tmp_path / name


def test_the_network_takes_and_returns_tensors_by_name(tmp_path: Path) -> None:
    network = open_network(folder_of(tmp_path, BERT))
    assert network.name == "mine"
    signature = network.signature()
    assert str(signature) == (
        "(input_ids=int64[1, 8]) -> {last_hidden_state: float32[1, 8, 16], pooler_output: float32[1, 16]}"
    )
    (tokens,) = network.inputs()
    assert network.export().module()(input_ids=tokens).pooler_output.shape == (1, 16)


@pytest.mark.parametrize(
    ("config", "inputs"),
    [
        ({"model_type": "clip", "text_config": TEXT | {"eos_token_id": 2}, "vision_config": VISION},
         {"input_ids": (1, 8), "pixel_values": (1, 3, 16, 16)}),
        ({"model_type": "bart"} | SEQ2SEQ, {"input_ids": (1, 8), "decoder_input_ids": (1, 8)}),
        ({"model_type": "whisper", "num_mel_bins": 8, "max_source_positions": 6, "max_target_positions": 8} | SEQ2SEQ,
         {"input_features": (1, 8, 12), "decoder_input_ids": (1, 8)}),
        ({"model_type": "wav2vec2", "conv_dim": [8] * 7, "num_conv_pos_embeddings": 4}
         | {"num_conv_pos_embedding_groups": 2} | SMALL, {"input_values": (1, 16_000)}),
        ({"model_type": "audio-spectrogram-transformer", "max_length": 32, "num_mel_bins": 32}
         | {"patch_size": 16} | SMALL, {"input_values": (1, 32, 32)}),
        ({"model_type": "vit"} | VISION, {"pixel_values": (1, 3, 16, 16)}),
        ({"model_type": "videomae", "num_frames": 2, "tubelet_size": 2} | VISION, {"pixel_values": (1, 2, 3, 16, 16)}),
        ({"model_type": "canine", "max_position_embeddings": 16, "num_hash_functions": 2, "num_hash_buckets": 8}
         | {"downsampling_rate": 2, "local_transformer_stride": 8} | SMALL, {"input_ids": (1, 16)}),
        ({"model_type": "patchtst", "context_length": 16, "num_input_channels": 2}, {"past_values": (1, 16, 2)}),
        ({"model_type": "time_series_transformer", "context_length": 8, "prediction_length": 4, "num_time_features": 2}
         | {"lags_sequence": [1, 3], "d_model": 16},
         {"past_values": (1, 11), "past_time_features": (1, 11, 2), "past_observed_mask": (1, 11),
          "future_values": (1, 4), "future_time_features": (1, 4, 2)}),
        ({"model_type": "longt5", "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "local_radius": 3}
         | SEQ2SEQ | {"n_positions": 8},
         {"input_ids": (1, 8), "attention_mask": (1, 8), "decoder_input_ids": (1, 8),
          "decoder_attention_mask": (1, 8)}),
        ({"model_type": "switch_transformers", "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_decoder_layers": 1}
         | SEQ2SEQ | {"num_heads": 2, "num_experts": 2, "n_positions": 8},
         {"input_ids": (1, 8), "attention_mask": (1, 8), "decoder_input_ids": (1, 8),
          "decoder_attention_mask": (1, 8)}),
    ],
    ids=lambda value: value.get("model_type", ""),
)  # fmt: skip
def test_every_family_has_the_inputs_that_its_configuration_tells(
    tmp_path: Path, config: dict[str, Any], inputs: dict[str, tuple[int, ...]]
) -> None:
    network = open_network(folder_of(tmp_path, config))
    assert [tuple(x.shape) for x in network.inputs()] == [*inputs.values()]
    assert [spec.name for spec in network.signature().inputs] == [*inputs]


def test_experts_are_computed_without_a_loop_over_those_that_values_choose(tmp_path: Path) -> None:
    import transformers

    sizes = SMALL | {"vocab_size": 50, "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}
    sizes |= {"num_key_value_heads": 1, "pad_token_id": 1, "max_position_embeddings": 8}
    config = {"model_type": "openai_privacy_filter"} | sizes
    (output,) = open_network(folder_of(tmp_path, config)).signature().outputs
    assert output.shape == (1, 8, SMALL["hidden_size"])
    model = transformers.OpenAIPrivacyFilterModel(transformers.OpenAIPrivacyFilterConfig(**sizes)).eval()
    with pytest.raises(NetworkImportError) as refusal:
        open_network(model, (torch.ones(1, 8, dtype=torch.int64),))
    assert 'model.set_experts_implementation("grouped_mm")' in refusal.value.remedy


def test_a_limit_that_is_infinite_is_read_as_transformers_writes_it(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "num_heads": 4, "head_dim": 8, "state_size": 8, "n_groups": 1, "num_hidden_layers": 1}
    config = {"model_type": "mamba2", "time_step_limit": [0.0, {"__float__": "Infinity"}], "vocab_size": 50} | sizes
    assert open_network(folder_of(tmp_path, config)).name == "mine"


def test_batch_and_length_are_free(tmp_path: Path) -> None:
    network = open_network(folder_of(tmp_path, BERT), shapes={"batch": [1, 3], "seq": [4]})
    assert [tuple(v.inputs()[0].shape) for v in network.variants] == [(1, 4), (3, 4)]
    assert [v.name for v in network.variants] == ["mine-batch1-seq4", "mine-batch3-seq4"]
    for wrong in ({"width": [3]}, {"batch": [0]}, {"batch": []}):
        with pytest.raises(NetworkImportError) as caught:
            open_network(tmp_path / "mine", shapes=wrong)
        assert "--shape batch=1,8" in str(caught.value.remedy)


def test_weights_beside_the_configuration_are_loaded_from_safetensors_alone(tmp_path: Path) -> None:
    import transformers

    torch.manual_seed(7)
    model = transformers.BertModel(transformers.BertConfig(**{k: v for k, v in BERT.items() if k in SMALL})).eval()
    model.save_pretrained(tmp_path / "saved")
    network = open_network(tmp_path / "saved")
    (tokens,) = network.inputs()
    out = network.export().module()(input_ids=tokens)
    assert torch.allclose(out.last_hidden_state, model(tokens).last_hidden_state, atol=1e-6)

    mark = folder_of(tmp_path, BERT, "pickled") / "pytorch_model.bin"
    mark.write_bytes(b"never read")
    assert "only model.safetensors is loaded" in open_network(mark.parent).notes[0]


@pytest.mark.parametrize(
    ("change", "message", "remedy"),
    [
        ({"model_type": "bertt"}, "does not have: 'bertt'", "did you mean bert"),
        ({"model_type": "own", "auto_map": {"AutoModel": "m.Own"}}, "would run code of its repository", ".pt2"),
        ({"architectures": ["logging"]}, "the architecture 'logging', which is no model", "name a model class"),
        ({"architectures": ["Own"], "auto_map": {"AutoModel": "m.Own"}}, "would run code of its repository", ".pt2"),
        ({"architectures": ["PreTrainedModel"]}, "which is no model", "name a model class"),
        ({"num_hidden_layers": 10**9}, "has 1000000000 num_hidden_layers", "at most 1000"),
        ({"text_config": {"depths": [9, 10**9]}}, "has 1000000009 depths", "at most 1000"),
        ({"vocab_size": 10**12}, "billion numbers, which take .* GB of memory", "smaller network"),
        ({"hidden_size": "wide"}, "makes no model: ", "the version of transformers that it names"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised weights", "original weights"),
        ({"text_config": {"quantization_config": {"quant_method": "gptq"}}}, "quantised weights", "original weights"),
    ],
)
def test_what_cannot_be_had_safely_is_refused_before_anything_is_loaded(
    tmp_path: Path, change: dict[str, Any], message: str, remedy: str
) -> None:
    with pytest.raises(NetworkImportError, match=message) as caught:
        open_network(folder_of(tmp_path, BERT | change))
    assert remedy in str(caught.value.remedy)


def test_a_package_that_a_model_needs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(*_: Any, **__: Any) -> Any:
        raise ImportError("\nBert needs the timm library.\nYou may need to restart your runtime.")

    monkeypatch.setattr("transformers.BertModel.__init__", lacking)
    with pytest.raises(NetworkImportError, match=r"makes no model here: Bert needs the timm library\.$") as caught:
        open_network(folder_of(tmp_path, BERT))
    assert "install what it names" in str(caught.value.remedy)


def test_code_of_a_repository_is_not_run_where_transformers_has_the_model(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, BERT | {"auto_map": {"AutoModel": "modeling_own.Own"}})
    (folder / "modeling_own.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')")
    network = open_network(folder)
    network.export()
    assert network.notes == ("the model is transformers' own BertModel: no code of the repository is run",)
    assert not (tmp_path / "mark").exists()


def test_an_input_without_a_known_shape_is_named(tmp_path: Path) -> None:
    network = open_network(folder_of(tmp_path, {"model_type": "timesfm", "head_dim": 8} | SMALL))
    with pytest.raises(NetworkImportError, match="takes past_values, whose shape the configuration does not tell") as e:
        network.inputs()
    assert ".pt2" in str(e.value.remedy)


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "model.safetensors").write_bytes(b"no tensors"),
        lambda folder: (folder / "model.safetensors").symlink_to("/etc/passwd"),
    ],
)
def test_weights_that_are_none_are_an_error_of_the_folder(tmp_path: Path, damage: Any) -> None:
    folder = folder_of(tmp_path, BERT)
    damage(folder)
    with pytest.raises(NetworkImportError, match="the weights beside it do not make a network") as caught:
        open_network(folder).export()
    assert caught.value.remedy


@pytest.mark.parametrize(
    "name", ["../../evil.bin", "evil.bin", "../saved/model.safetensors", "lost.safetensors", "pipe.safetensors", 3]
)
def test_an_index_of_weights_names_safetensors_of_its_own_folder_alone(tmp_path: Path, name: Any) -> None:
    folder, mark = folder_of(tmp_path, BERT), tmp_path / "mark"
    torch.save(Touch(mark), folder / "evil.bin")
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "model.safetensors").write_bytes(b"of somebody else")
    os.mkfifo(folder / "pipe.safetensors")
    index = {"metadata": {}, "weight_map": {"embeddings.word_embeddings.weight": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(NetworkImportError, match="which is no file of safetensors beside it") as caught:
        open_network(folder)
    assert "save_pretrained" in str(caught.value.remedy)
    assert not mark.exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 3}', "[" * 10_000])
def test_an_index_of_weights_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    folder = folder_of(tmp_path, BERT)
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(NetworkImportError, match=r"index\.json cannot be read"):
        open_network(folder)


def test_an_adapter_beside_the_weights_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, BERT)
    for name in ("model.safetensors", "adapter_config.json"):
        (folder / name).write_text("{}")
    with pytest.raises(NetworkImportError, match="an adapter"):
        open_network(folder)


def test_no_server_is_asked_for_a_part_that_lies_in_another_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    asked: list[Any] = []
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("socket.getaddrinfo", lambda *address, **_: asked.append(address) or [])
    config = {"model_type": "upernet", "backbone": "owner/name", "use_timm_backbone": False}
    with pytest.raises(NetworkImportError, match="in another repository, which is not asked") as caught:
        open_network(folder_of(tmp_path, config))
    assert "backbone_config" in str(caught.value.remedy)
    assert (asked, constants.HF_HUB_OFFLINE) == ([], False)


def test_inputs_that_no_memory_holds_are_refused(tmp_path: Path) -> None:
    config = {"model_type": "vit", **VISION, "image_size": 8_000_000, "patch_size": 2000, "num_channels": 1}
    with pytest.raises(NetworkImportError, match="GB of memory"):
        open_network(folder_of(tmp_path, config | {"hidden_size": 2})).inputs()


@pytest.mark.parametrize("initial", [0.1, 1e-4], ids=["small weights", "activations below the norms' epsilon"])
def test_a_deep_untrained_network_keeps_its_activations_near_one(initial: float) -> None:
    torch.manual_seed(0)
    layers = [
        layer for _ in range(30) for layer in (nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    ]
    for convolution in layers[::3]:
        nn.init.normal_(convolution.weight, std=initial)
    network, x = nn.Sequential(*layers).eval(), torch.randn(1, 8, 6, 6)
    assert float(network(x).std()) < 1e-6
    assert 1e-2 < float(settle_batch_norms(network, x)(x).std()) < 1e2


def test_an_average_behind_a_settled_norm_is_more_than_rounding() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1)).eval()
    x = torch.randn(1, 8, 6, 6)
    assert settle_batch_norms(network, x)(x).std() > 1e-2


def test_a_model_that_returns_its_keys_and_values_is_refused_with_how_it_returns_none() -> None:
    import transformers

    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)).eval()
    tokens = (torch.randint(0, 50, (1, 8)),)
    with pytest.raises(NetworkImportError, match="DynamicCache'> in output") as caught:
        open_network(model, tokens)
    assert caught.value.remedy == "let it return no keys and values: model.config.get_text_config().use_cache = False"
    model.config.get_text_config().use_cache = False
    assert open_network(model, tokens).signature().outputs[0].shape == (1, 8, 50)
