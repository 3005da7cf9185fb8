# Compares packages hf and lora with Hugging Face's transformers and PEFT, for each architecture, with small models of
# random weights:
#
#   transformers_check.py BINARY [WORK]
#
# BINARY is the command test/transformers of this repository: `go build -o BINARY ./test/transformers`. WORK is a folder,
# by default a temporary one. GODDP_DEVICE=cpu computes on the CPU; otherwise both sides use a GPU, and BFloat16 is compared
# too. It prints a line for each architecture and exits with 1 if one misses a limit:
#
#   logits    of goddp in Float32, relative to the largest logit: at most 2e-6
#   losses    of 20 steps of AdamW in Float32, relative to the same steps of transformers in Float64, and in brackets
#             relative to transformers in Float32: each at most 1e-6. The first figure in brackets is how far transformers
#             in Float32 is from Float64.
#   bf16      the error of goddp's logits in BFloat16 against Float32, divided by that of transformers: at most 1.05
#   saved     goddp's folder: no missing or unexpected keys, the same logits to the bit, the same 100 tokens greedily
#
# For PEFT's adapters of some models:
#
#   logits    as above
#   losses    of 20 steps of the adapters, relative to PEFT's: at most 1e-6
#   merged    the largest difference of merged weights, relative to the largest: at most a rounding
#   saved     the logits with the adapters that goddp has trained and saved, in PEFT: at most 2e-6, and no warnings
import copy
import glob
import os
import subprocess
import sys
import tempfile
import warnings

try:
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM
except ImportError as e:
    print(e, file=sys.stderr)
    sys.exit(77)
try:
    import peft
except ImportError:
    peft = None

binary = sys.argv[1]
work = sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp()
device = "cpu" if os.environ.get("GODDP_DEVICE") == "cpu" or not torch.cuda.is_available() else "cuda"
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
torch.set_float32_matmul_precision("highest")
ROWS, TOKENS, STEPS = 4, 96, 20

common = dict(
    vocab_size=503, hidden_size=128, intermediate_size=320, num_hidden_layers=4, num_attention_heads=8,
    num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2,
    pad_token_id=0, attention_dropout=0.0,
)


def rope(theta, kind="default", **more):
    return dict(rope_theta=theta, rope_type=kind, **more)


def of(cls, parameters, **more):
    """A config. transformers before 5 takes rope_theta and rope_scaling in place of rope_parameters."""
    if int(transformers.__version__.split(".")[0]) < 5:
        theta = parameters.pop("rope_theta")
        scaling = parameters if parameters["rope_type"] != "default" else None
        return cls(**{**common, **more, "rope_theta": theta, "rope_scaling": scaling})
    return cls(**{**common, **more, "rope_parameters": parameters})


t = transformers
llama3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
configs = {
    "llama": lambda: of(t.LlamaConfig, rope(10000.0)),
    "llama3.1": lambda: of(t.LlamaConfig, rope(500000.0, "llama3", **llama3), mlp_bias=True),
    "llama_linear": lambda: of(t.LlamaConfig, rope(10000.0, "linear", factor=2.0), attention_bias=True),
    "llama_yarn": lambda: of(t.LlamaConfig, rope(10000.0, "yarn", factor=8.0, original_max_position_embeddings=64), head_dim=32),
    "smollm2": lambda: of(t.LlamaConfig, rope(100000.0), tie_word_embeddings=True, num_key_value_heads=8),
    "mistral": lambda: of(t.MistralConfig, rope(10000.0), sliding_window=24, head_dim=32),
    "qwen2": lambda: of(t.Qwen2Config, rope(1000000.0), tie_word_embeddings=True, use_sliding_window=False),
    "qwen2_window": lambda: of(t.Qwen2Config, rope(1000000.0), use_sliding_window=True, sliding_window=20, max_window_layers=2),
    "qwen3": lambda: of(t.Qwen3Config, rope(1000000.0), head_dim=32, use_sliding_window=False),
    "smollm3": lambda: of(t.SmolLM3Config, rope(2000000.0), tie_word_embeddings=True, no_rope_layer_interval=2),
    "gpt2": lambda: t.GPT2Config(
        vocab_size=503, n_embd=128, n_layer=4, n_head=8, n_positions=512, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=1, eos_token_id=2),
}


def relative(got, want):
    return ((got.double() - want.double()).abs().max() / want.double().abs().max()).item()


def error(got, want):
    return (got.double() - want.double()).pow(2).mean().sqrt().item()


def logits(model, ids):
    with torch.no_grad():
        return model.eval()(ids.to(device)).logits.cpu()


def goddp(folder, tokens, *flags):
    out = os.path.join(work, "out.safetensors")
    subprocess.run([binary, *flags, folder, tokens, out], check=True)
    return load_file(out)


def generate(model, ids):
    with torch.no_grad():
        return model.generate(ids[:1, :8].to(device), max_new_tokens=100, min_new_tokens=100, do_sample=False, pad_token_id=0).cpu()


def steps(model, all_ids):
    """Returns the losses of steps of AdamW on the parameters that require a gradient."""
    model.train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    losses = []
    for rows in all_ids.to(device):
        loss = torch.nn.functional.cross_entropy(model(rows[:, :-1]).logits.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        opt.step()
        opt.zero_grad()
        losses.append(loss.item())
    return torch.tensor(losses, dtype=torch.float64)


def in_float64(model):
    """Returns a copy of a model that computes all in Float64, except the angles of rotary positions."""
    model = copy.deepcopy(model).double()
    for m in model.modules():
        if m.__class__.__name__.endswith("RMSNorm"):
            m.forward = lambda x, m=m: m.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + m.variance_epsilon))
        if m.__class__.__name__.endswith("RotaryEmbedding"):
            def angles(x, position_ids, m=m):
                a = (position_ids[:, :, None].float() * m.inv_freq[None, None, :].float()).double()
                a = torch.cat((a, a), -1)
                return a.cos() * m.attention_scaling, a.sin() * m.attention_scaling
            m.forward = angles
    return model


def off(losses, want):
    return (losses / want - 1).abs().max().item()


def check(name, config):
    """Returns the figures of an architecture, and what misses a limit."""
    folder, saved = os.path.join(work, name), os.path.join(work, name + "_saved")
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config).float()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.normal_(0, 0.06)
            else:
                p.add_(0.1 * torch.randn_like(p))
    # some folders have one file, some have shards
    model.save_pretrained(folder, max_shard_size="200KB" if len(name) % 2 else "1GB")
    tokens = os.path.join(work, name + "_tokens.safetensors")
    all_ids = torch.randint(3, 503, (STEPS, ROWS, TOKENS + 1))
    save_file({"tokens": all_ids}, tokens)
    first = all_ids[0, :, :-1]
    model = model.to(device)
    want = logits(model, first)

    got = goddp(folder, tokens, "--save", saved, *(["--shard", "300000"] if len(name) % 3 == 0 else []))
    figures, missed = {"logits": relative(got["logits"], want)}, []
    if not figures["logits"] <= 2e-6:
        missed.append("logits")

    if device == "cuda":
        half = goddp(folder, tokens, "--dtype", "bfloat16")["logits"]
        theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device)
        figures["bf16"] = error(half, want) / error(logits(theirs, first), want)
        if not figures["bf16"] <= 1.05:
            missed.append("bf16")

    again, info = AutoModelForCausalLM.from_pretrained(saved, dtype="auto", output_loading_info=True)
    again = again.to(device)
    wrong = [f"{k} {list(info[k])}" for k in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[k]]
    if again.dtype != torch.float32:
        wrong.append(f"type {again.dtype}")
    if not torch.equal(logits(again, first), want):
        wrong.append("other logits")
    if not torch.equal(generate(again, first), generate(model, first)):
        wrong.append("other tokens")
    figures["saved"] = "; ".join(wrong) or "equal"
    missed += ["saved"] if wrong else []

    exact = steps(in_float64(model), all_ids)
    theirs, ours = steps(model, all_ids), got["losses"]
    figures["losses"] = f"{off(ours, exact):.2g} ({off(theirs, exact):.2g}, {off(ours, theirs):.2g})"
    if not max(off(ours, exact), off(ours, theirs)) <= 1e-6:
        missed.append("losses")
    return figures, missed


def check_adapters(name, **options):
    """The same for PEFT's adapters of a model that check has saved."""
    folder, tokens = os.path.join(work, name), os.path.join(work, name + "_tokens.safetensors")
    theirs, ours, merged = (os.path.join(work, name + end) for end in ("_peft", "_lora", "_merged"))
    all_ids = load_file(tokens)["tokens"]
    first = all_ids[0, :, :-1]

    def base():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device)

    torch.manual_seed(1)
    model = peft.get_peft_model(base(), peft.LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, **options))
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.normal_(0, 0.03)  # the products are then smaller than the weights, as those of trained adapters
    model.save_pretrained(theirs)
    got = goddp(folder, tokens, "--adapters", theirs, "--save-adapters", ours)
    figures = {"logits": relative(got["logits"], logits(model, first)), "losses": off(got["losses"], steps(model, all_ids))}

    goddp(folder, tokens, "--adapters", theirs, "--merge", "--save", merged)
    want = peft.PeftModel.from_pretrained(base(), theirs).merge_and_unload().state_dict()
    files = [load_file(f) for f in glob.glob(os.path.join(merged, "*.safetensors"))]
    figures["merged"] = max(relative(w, want[key].cpu()) for f in files for key, w in f.items())

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        again = peft.PeftModel.from_pretrained(base(), ours).to(device)
    figures["saved"] = relative(logits(again, first), got["tuned"])
    missed = [k for k, most in (("logits", 2e-6), ("losses", 1e-6), ("merged", 1.2e-7), ("saved", 2e-6)) if not figures[k] <= most]
    # PEFT writes by itself what it needs for GPT-2's transposed matrices, and says so
    missed += [str(w.message) for w in said if issubclass(w.category, UserWarning) and "fan_in_fan_out" not in str(w.message)]
    return figures, missed


def report(name, figures, missed):
    global failed
    failed |= bool(missed)
    text = ", ".join(f"{k} {v:.2g}" if isinstance(v, float) else f"{k} {v}" for k, v in figures.items())
    print(f"{name:13} {text}" + (f"   MISSED: {', '.join(missed)}" if missed else ""), flush=True)


failed = False
print(f"transformers {transformers.__version__}, PyTorch {torch.__version__}, {device}")
for name, config in configs.items():
    report(name, *check(name, config()))
if peft is None:
    print("no adapters: PEFT is not installed")
else:
    print(f"adapters, PEFT {peft.__version__}")
    report("llama", *check_adapters("llama", target_modules=["q_proj", "v_proj"]))
    report("qwen3", *check_adapters("qwen3", target_modules="all-linear"))
    report("smollm2", *check_adapters("smollm2", target_modules=["up_proj", "down_proj", "o_proj"], use_rslora=True))
    report("gpt2", *check_adapters("gpt2", target_modules=["c_attn", "c_fc"], fan_in_fan_out=True))
sys.exit(failed)
