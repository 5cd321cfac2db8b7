"""A GGUF file to a folder as transformers writes it: fp32 safetensors, config.json, tokenizer files (G18).

Llama-shaped files with a GPT-2 style tokenizer are read directly, in seconds, and hold exactly the file's values; all
others go through transformers, which takes about a minute. Runs once per model, never when one is loaded.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import WeightsError

_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_CONTROL, _USER_DEFINED = 3, 4
# Ways of cutting text before byte-pair encoding that are exactly a digit split and GPT-2's own rule.
_SPLITS = {"smollm": True, "gpt-2": False}


def convert_gguf(path: Path, folder: Path) -> None:
    """Writes `path` into `folder`. Raises WeightsError."""
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise WeightsError("Reading GGUF files needs the extra: pip install 'shoal[llm]'.") from error
    try:
        reader = GGUFReader(path)
        fields = {key: field.contents() for key, field in reader.fields.items()}
    except (ValueError, OSError, IndexError, KeyError) as error:
        raise WeightsError(f"{path} is not a whole GGUF file: {error}. Fetch it again.") from error
    direct = (
        fields.get("general.architecture") == "llama"
        and fields.get("tokenizer.ggml.model") == "gpt2"
        and fields.get("tokenizer.ggml.pre") in _SPLITS
        and "rope_freqs.weight" not in {tensor.name for tensor in reader.tensors}
    )
    if not direct:
        return _through_transformers(path, folder)
    _write_json(folder / "generation_config.json", {"eos_token_id": fields["tokenizer.ggml.eos_token_id"]})
    config = _config(fields, tied=all(tensor.name != "output.weight" for tensor in reader.tensors))
    _write_tensors(reader.tensors, config, folder)
    _write_tokenizer(fields, folder)
    _write_json(folder / "config.json", config)


def _config(fields: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    heads = fields["llama.attention.head_count"]
    hidden = fields["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "dtype": "float32",
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "head_dim": fields.get("llama.attention.key_length", hidden // heads),
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": fields["llama.feed_forward_length"],
        "max_position_embeddings": fields["llama.context_length"],
        "num_attention_heads": heads,
        "num_hidden_layers": fields["llama.block_count"],
        "num_key_value_heads": fields.get("llama.attention.head_count_kv", heads),
        "pad_token_id": fields.get("tokenizer.ggml.padding_token_id"),
        # GGUF keeps these as fp32; six digits give back what was meant
        "rms_norm_eps": float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": float(fields.get("llama.rope.freq_base", 10000.0)),
        "tie_word_embeddings": tied,
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
    }


def _write_tensors(tensors: Any, config: dict[str, Any], folder: Path) -> None:
    from gguf import dequantize
    from safetensors.numpy import save_file

    weights: dict[str, NDArray[np.float32]] = {}
    for tensor in tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        if tensor.name.endswith("attn_q.weight"):
            values = _unpermute(values, config["num_attention_heads"])
        elif tensor.name.endswith("attn_k.weight"):
            values = _unpermute(values, config["num_key_value_heads"])
        weights[_hf_name(tensor.name)] = np.ascontiguousarray(values)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _unpermute(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """llama.cpp interleaves the two rotary halves of each head; Hugging Face keeps them apart."""
    return rows.reshape(heads, rows.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape)


def _hf_name(name: str) -> str:
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    block, _, rest = name.removeprefix("blk.").partition(".")
    if not name.startswith("blk.") or rest not in _NAMES:
        raise WeightsError(f"The GGUF file holds a tensor {name!r} that this shape does not have.")
    return f"model.layers.{block}.{_NAMES[rest]}"


def _write_tokenizer(fields: dict[str, Any], folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    words: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(BPE(vocab={word: i for i, word in enumerate(words)}, merges=merges))
    steps: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    if _SPLITS[fields["tokenizer.ggml.pre"]]:
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens(
        [AddedToken(w, normalized=False) for w, k in zip(words, kinds, strict=True) if k == _CONTROL]
    )
    tokenizer.add_tokens(
        [AddedToken(w, normalized=False) for w, k in zip(words, kinds, strict=True) if k == _USER_DEFINED]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: fields.get(f"tokenizer.ggml.{key}_token_id") for name, key in named.items()}
    settings: dict[str, Any] = {name: words[i] for name, i in ids.items() if i is not None}
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    settings["model_max_length"] = fields["llama.context_length"]
    if template := fields.get("tokenizer.chat_template"):
        settings["chat_template"] = template
    _write_json(folder / "tokenizer_config.json", settings)


def _through_transformers(path: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
    except (ValueError, OSError, KeyError, NotImplementedError, ImportError) as error:
        raise WeightsError(f"transformers cannot read {path.name}: {error}") from error
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(
        json.dumps({k: v for k, v in value.items() if v is not None}, indent=2, ensure_ascii=False) + "\n", "utf-8"
    )
