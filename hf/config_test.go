package hf

import (
	"os"
	"path/filepath"
	"testing"
)

// The configs of models on the hub, without keys that do not matter, give as many parameters as the models have.
func TestConfigsOfTheHub(t *testing.T) {
	for name, c := range map[string]struct {
		config string
		want   int
	}{
		"Llama-3.2-1B": {`{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
			"head_dim": 64, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
			"max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32,
			"num_hidden_layers": 16, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
			"rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
				"original_max_position_embeddings": 8192, "rope_type": "llama3"},
			"rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "vocab_size": 128256}`, 1235814400},
		"SmolLM2-135M": {`{"architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 576, "intermediate_size": 1536,
			"max_position_embeddings": 8192, "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3,
			"rms_norm_eps": 1e-05, "rope_interleaved": false, "rope_scaling": null, "rope_theta": 100000, "tie_word_embeddings": true,
			"torch_dtype": "bfloat16", "vocab_size": 49152}`, 134515008},
		"Mistral-7B-v0.3": {`{"architectures": ["MistralForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
			"intermediate_size": 14336, "max_position_embeddings": 32768, "num_attention_heads": 32, "num_hidden_layers": 32,
			"num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": null,
			"tie_word_embeddings": false, "vocab_size": 32768}`, 7248023552},
		"Qwen2.5-0.5B": {`{"architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu", "hidden_size": 896, "intermediate_size": 4864,
			"max_position_embeddings": 32768, "max_window_layers": 24, "num_attention_heads": 14, "num_hidden_layers": 24,
			"num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
			"tie_word_embeddings": true, "use_mrope": false, "use_sliding_window": false, "vocab_size": 151936}`, 494032768},
		"Qwen3-0.6B": {`{"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "head_dim": 128, "hidden_act": "silu",
			"hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
			"num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
			"rope_scaling": null, "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true,
			"use_sliding_window": false, "vocab_size": 151936}`, 596049920},
		"SmolLM3-3B": {`{"architectures": ["SmolLM3ForCausalLM"], "attention_bias": false, "hidden_act": "silu", "hidden_size": 2048,
			"intermediate_size": 11008, "max_position_embeddings": 65536, "mlp_bias": false, "no_rope_layer_interval": 4,
			"num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
			"rope_scaling": null, "rope_theta": 5000000.0, "sliding_window": null, "use_sliding_window": false,
			"vocab_size": 128256}`, 3075098624},
		"gpt2": {`{"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "embd_pdrop": 0.1,
			"initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
			"n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "vocab_size": 50257}`, 124439808},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(c.config), 0o666); err != nil {
			t.Fatal(err)
		}
		_, m, err := newModel(dir, "")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		n := 0
		for _, p := range m.Parameters() {
			n += p.Shape().Len()
		}
		if n != c.want {
			t.Errorf("%s has %d parameters, want %d", name, n, c.want)
		}
	}
}
