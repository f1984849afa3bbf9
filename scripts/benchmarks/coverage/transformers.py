"""Transformers configurations of the coverage benchmark, as `config.json` has them: one a model type.

Two layers each, with the head sizes and the ratios of hidden and feed-forward sizes of the real models, a small
vocabulary and few pixels: what decides whether a network can be compiled is which operators it has.
"""

from __future__ import annotations

from typing import Any

_VOCABULARY, _TOKENS = 1000, 32
_IDS = {"vocab_size": _VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_WIDE = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
_BASE = _IDS | _WIDE | {"max_position_embeddings": _TOKENS}
_GATED = _BASE | {"intermediate_size": 344}
_GPT = _IDS | {"n_embd": 128, "n_layer": 2, "n_head": 2, "n_positions": _TOKENS}
_IMAGE = {"hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 768}
_SMALL_IMAGE = _IMAGE | {"image_size": 64}
_SPEECH = _IDS | {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 512,
    "conv_dim": [64] * 7,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
_SEQ2SEQ = _IDS | {
    "d_model": 128,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 512,
    "decoder_ffn_dim": 512,
    "max_position_embeddings": _TOKENS,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": 2,
}
_TEXT_TOWER = (
    _WIDE | {"vocab_size": _VOCABULARY, "max_position_embeddings": 16} | {"bos_token_id": 1, "eos_token_id": 2}
)
_IMAGE_TOWER = _IMAGE | {"image_size": 64, "patch_size": 16}

DECODERS: dict[str, dict[str, Any]] = {
    "gpt2": _GPT | {"architectures": ["GPT2LMHeadModel"]},
    "gpt_neo": _IDS
    | {"hidden_size": 128, "num_layers": 2, "num_heads": 2, "max_position_embeddings": _TOKENS}
    | {"attention_types": [[["global", "local"], 1]], "window_size": 16},
    "gpt_neox": _BASE | {"rotary_pct": 0.25},
    "gptj": _GPT | {"rotary_dim": 32},
    "opt": _IDS | {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 512}
    | {"max_position_embeddings": _TOKENS, "word_embed_proj_dim": 128},
    "llama": _GATED | {"num_key_value_heads": 1, "architectures": ["LlamaForCausalLM"]},
    "qwen2": _GATED | {"num_key_value_heads": 1},
    "qwen3": _GATED | {"num_key_value_heads": 1, "head_dim": 64, "architectures": ["Qwen3ForCausalLM"]},
    "mistral": _GATED | {"num_key_value_heads": 1, "sliding_window": 16},
    "gemma": _GATED | {"num_key_value_heads": 1, "head_dim": 64},
    "gemma2": _GATED | {"num_key_value_heads": 1, "head_dim": 64, "sliding_window": 16},
    "phi": _BASE | {"partial_rotary_factor": 0.5},
    "phi3": _GATED | {"num_key_value_heads": 2, "original_max_position_embeddings": _TOKENS},
    "falcon": _IDS | {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "alibi": True}
    | {"new_decoder_architecture": False, "multi_query": True, "max_position_embeddings": _TOKENS},
    "bloom": _IDS | {"hidden_size": 128, "n_layer": 2, "n_head": 2},
    "mpt": _IDS | {"d_model": 128, "n_layers": 2, "n_heads": 2, "max_seq_len": _TOKENS},
    "stablelm": _GATED | {"num_key_value_heads": 1, "partial_rotary_factor": 0.25},
    "olmo": _GATED | {"num_key_value_heads": 2},
    "mamba": _IDS | {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 8, "max_position_embeddings": 16},
}  # fmt: skip

ENCODERS: dict[str, dict[str, Any]] = {
    "bert": _BASE | {"architectures": ["BertForSequenceClassification"]},
    "roberta": _BASE | {"max_position_embeddings": _TOKENS + 2},
    "distilbert": _IDS | {"dim": 128, "n_layers": 2, "n_heads": 2, "hidden_dim": 512}
    | {"max_position_embeddings": _TOKENS},
    "albert": _BASE | {"embedding_size": 64},
    "electra": _BASE | {"embedding_size": 64},
    "mpnet": _BASE | {"max_position_embeddings": _TOKENS + 2},
    "deberta": _BASE | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 32},
    "deberta-v2": _BASE | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 16},
    "xlm-roberta": _BASE | {"max_position_embeddings": _TOKENS + 2},
    "mobilebert": _IDS | {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "embedding_size": 64}
    | {"intermediate_size": 128, "intra_bottleneck_size": 64, "max_position_embeddings": _TOKENS},
    "squeezebert": _BASE | {"embedding_size": 128},
    "convbert": _BASE | {"embedding_size": 128, "conv_kernel_size": 9},
    "fnet": _BASE | {"tpu_short_seq_length": _TOKENS},
    "funnel": _IDS | {"d_model": 128, "n_head": 2, "d_head": 64, "d_inner": 512, "block_sizes": [1, 1]}
    | {"block_repeats": [1, 1]}
    | {"num_decoder_layers": 1, "max_position_embeddings": _TOKENS},
    "roformer": _BASE | {"embedding_size": 128},
    "modernbert": _GATED | {"global_attn_every_n_layers": 2, "local_attention": 16}
    | {"cls_token_id": 1, "sep_token_id": 2},
}  # fmt: skip

SEQ2SEQ: dict[str, dict[str, Any]] = {
    "t5": _IDS | {"d_model": 128, "d_kv": 64, "d_ff": 512, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 2}
    | {"decoder_start_token_id": 0, "n_positions": _TOKENS},
    "bart": _SEQ2SEQ,
    "marian": _SEQ2SEQ | {"pad_token_id": 0},
    "pegasus": _SEQ2SEQ,
    "whisper": _SEQ2SEQ | {"num_mel_bins": 80, "max_source_positions": 50, "max_target_positions": _TOKENS}
    | {"suppress_tokens": None, "begin_suppress_tokens": None},
}  # fmt: skip

VISION: dict[str, dict[str, Any]] = {
    "vit": _SMALL_IMAGE | {"patch_size": 16, "architectures": ["ViTForImageClassification"]},
    "deit": _SMALL_IMAGE | {"patch_size": 16},
    "beit": _SMALL_IMAGE | {"patch_size": 16, "use_relative_position_bias": True},
    "swin": {"image_size": 64, "patch_size": 4, "embed_dim": 32, "depths": [2, 2], "num_heads": [1, 2]}
    | {"window_size": 4},
    "convnext": {"image_size": 64, "hidden_sizes": [32, 64], "depths": [1, 1], "num_stages": 2},
    "convnextv2": {"image_size": 64, "hidden_sizes": [32, 64], "depths": [1, 1], "num_stages": 2},
    "resnet": {"embedding_size": 32, "hidden_sizes": [64, 128], "depths": [1, 1], "layer_type": "basic"}
    | {"image_size": 64},
    "regnet": {"embedding_size": 32, "hidden_sizes": [32, 64], "depths": [1, 1], "groups_width": 16}
    | {"image_size": 64},
    "mobilenet_v1": {"image_size": 64, "depth_multiplier": 0.25, "min_depth": 8},
    "mobilenet_v2": {"image_size": 64, "depth_multiplier": 0.35},
    "efficientnet": {"image_size": 64, "width_coefficient": 0.5, "depth_coefficient": 0.5, "hidden_dim": 640},
    "mobilevit": {"image_size": 64, "hidden_sizes": [48, 64, 80], "neck_hidden_sizes": [16, 16, 24, 32, 48, 64, 96]},
    "pvt": {"image_size": 64, "depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 64, 128]}
    | {"num_attention_heads": [1, 2, 4, 8]},
    "segformer": {"image_size": 64, "depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 64, 128]}
    | {"decoder_hidden_size": 64, "architectures": ["SegformerForSemanticSegmentation"]},
    "levit": {"image_size": 64, "hidden_sizes": [64, 96, 128], "num_attention_heads": [2, 3, 4], "depths": [1, 1, 1]},
    "poolformer": {"image_size": 64, "depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 64, 128]},
    "dinov2": _SMALL_IMAGE | {"image_size": 56, "patch_size": 14},
    "detr": {"d_model": 128, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
    | {"decoder_attention_heads": 2, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256, "num_queries": 10}
    | {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None}
    | {"backbone_config": {"model_type": "resnet", "embedding_size": 16, "hidden_sizes": [32, 64], "depths": [1, 1]}
       | {"layer_type": "basic", "out_features": ["stage2"]}}
    | {"image_size": 64, "architectures": ["DetrForObjectDetection"]},
    "yolos": _SMALL_IMAGE | {"image_size": [64, 64], "patch_size": 16, "num_detection_tokens": 10}
    | {"architectures": ["YolosForObjectDetection"]},
    "dpt": _SMALL_IMAGE | {"patch_size": 16, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3]}
    | {"neck_hidden_sizes": [16, 32, 64, 64], "fusion_hidden_size": 32, "architectures": ["DPTForDepthEstimation"]},
    "clip_vision_model": _IMAGE_TOWER,
}  # fmt: skip

PAIRED: dict[str, dict[str, Any]] = {
    "clip": {"text_config": _TEXT_TOWER, "vision_config": _IMAGE_TOWER, "projection_dim": 64},
    "siglip": {"text_config": _TEXT_TOWER | {"projection_size": 192}, "vision_config": _IMAGE_TOWER},
}

AUDIO: dict[str, dict[str, Any]] = {
    "wav2vec2": _SPEECH,
    "hubert": _SPEECH,
    "audio-spectrogram-transformer": _IMAGE | {"max_length": 64, "num_mel_bins": 64, "patch_size": 16},
}
