package gguf_test

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/decoder"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/gguf"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/internal/testkit/cputest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/lora"
	"github.com/goddp/goddp/nn"
)

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o666); err != nil {
		t.Fatal(err)
	}
}

// contents is what a file has.
type contents struct {
	keys    map[string]any
	tensors map[string]contentsTensor
}

type contentsTensor struct {
	shape  []uint64 // the length of a row is first
	kind   uint32
	values []float64
}

// read reads a file, and fails the test if it is not as the format wants it.
func read(t *testing.T, path string) (c contents) {
	t.Helper()
	data := must.New(os.ReadFile(path))
	at := 0
	take := func(n int) []byte { at += n; return data[at-n : at] }
	u32 := func() uint32 { return binary.LittleEndian.Uint32(take(4)) }
	u64 := func() uint64 { return binary.LittleEndian.Uint64(take(8)) }
	text := func() string { return string(take(int(u64()))) }
	var value func(kind uint32) any
	value = func(kind uint32) any {
		switch kind {
		case 4:
			return u32()
		case 5:
			return int32(u32())
		case 6:
			return math.Float32frombits(u32())
		case 7:
			return take(1)[0] == 1
		case 8:
			return text()
		case 9:
			kind, list := u32(), []any{}
			for range u64() {
				list = append(list, value(kind))
			}
			return list
		}
		t.Fatalf("a value of type %d", kind)
		return nil
	}
	if magic, version := string(take(4)), u32(); magic != "GGUF" || version != 3 {
		t.Fatalf("the file begins with %q, version %d", magic, version)
	}
	tensors, keys := u64(), u64()
	c = contents{map[string]any{}, map[string]contentsTensor{}}
	for range keys {
		key := text()
		if c.keys[key] != nil {
			t.Errorf("key %s occurs twice", key)
		}
		c.keys[key] = value(u32())
	}
	var names []string
	var offsets []uint64
	for range tensors {
		name, shape := text(), []uint64{}
		for range u32() {
			shape = append(shape, u64())
		}
		names, c.tensors[name] = append(names, name), contentsTensor{shape, u32(), nil}
		offsets = append(offsets, u64())
	}
	at = (at + 31) / 32 * 32
	start := uint64(at)
	for i, name := range names {
		x := c.tensors[name]
		if start+offsets[i] != uint64(at) {
			t.Fatalf("%s is at %d, want %d", name, start+offsets[i], at)
		}
		n := uint64(1)
		for _, size := range x.shape {
			n *= size
		}
		for uint64(len(x.values)) < n {
			switch x.kind {
			case 0:
				x.values = append(x.values, float64(value(6).(float32)))
			case 1:
				x.values = append(x.values, float64(kernels.FromF16(binary.LittleEndian.Uint16(take(2)))))
			case 30:
				x.values = append(x.values, float64(kernels.FromBF16(binary.LittleEndian.Uint16(take(2)))))
			case 8:
				factor := float64(kernels.FromF16(binary.LittleEndian.Uint16(take(2))))
				for _, q := range take(32) {
					x.values = append(x.values, factor*float64(int8(q)))
				}
			}
		}
		c.tensors[name] = x
		at = (at + 31) / 32 * 32
	}
	if at != len(data) {
		t.Errorf("the file has %d bytes, want %d", len(data), at)
	}
	return c
}

// A written file has llama.cpp's names of tensors, its keys and types of metadata, and the model's weights.
func TestFile(t *testing.T) {
	dev := cputest.New(t)
	config := llama(func(c *decoder.Config) {
		c.Vocab, c.Feedforward, c.QKVBias, c.OutBias = 280, 80, true, true // rows of 80 are not whole blocks
		c.Layers = []decoder.Layer{{Window: 9}}
		c.Rope = decoder.Rope{Scaling: decoder.Llama3Scaling, Theta: 500000, Factor: 8, LowFrequency: 1, HighFrequency: 4, FirstTrained: 64}
	})
	for kind, number := range map[gguf.Type]uint32{gguf.F32: 0, gguf.F16: 1, gguf.BF16: 30, gguf.Q8_0: 8} {
		folder, path := sentencePiece(t), filepath.Join(t.TempDir(), "model.gguf")
		m := newModel(t, dev, config, nil)
		if err := gguf.Write(t.Context(), path, m, folder, kind); err != nil {
			t.Fatal(err)
		}
		c := read(t, path)
		for key, want := range map[string]any{
			"general.architecture": "llama", "general.type": "model", "general.name": filepath.Base(folder),
			"general.file_type":            map[gguf.Type]uint32{gguf.F32: 0, gguf.F16: 1, gguf.BF16: 32, gguf.Q8_0: 7}[kind],
			"general.quantization_version": uint32(2), "general.alignment": uint32(32),
			"llama.vocab_size": uint32(280), "llama.context_length": uint32(128), "llama.embedding_length": uint32(64), "llama.block_count": uint32(1),
			"llama.feed_forward_length": uint32(80), "llama.attention.head_count": uint32(4), "llama.attention.head_count_kv": uint32(2),
			"llama.attention.key_length": uint32(16), "llama.attention.value_length": uint32(16), "llama.attention.sliding_window": uint32(9),
			"llama.attention.layer_norm_rms_epsilon": float32(1e-5), "llama.rope.dimension_count": uint32(16), "llama.rope.freq_base": float32(500000),
			"tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": "default", "tokenizer.ggml.add_space_prefix": true,
			"tokenizer.ggml.bos_token_id": uint32(1), "tokenizer.ggml.eos_token_id": uint32(2), "tokenizer.ggml.unknown_token_id": uint32(0),
			"tokenizer.ggml.add_bos_token": true, "tokenizer.ggml.add_eos_token": false,
		} {
			if c.keys[key] != want {
				t.Errorf("%s is %v, want %v", key, c.keys[key], want)
			}
		}
		types := c.keys["tokenizer.ggml.token_type"].([]any)
		for id, want := range map[int]int32{0: 2, 1: 3, 3: 6, 259: 1, 269: 1, 279: 5} {
			if types[id] != want {
				t.Errorf("token %d is of type %v, want %d", id, types[id], want)
			}
		}
		freqs := c.tensors["rope_freqs.weight"]
		if n := len(freqs.values); n != 8 || freqs.values[0] != 1 || math.Abs(freqs.values[7]-8) > 1e-6 {
			t.Errorf("the factors of rotary positions are %v, want 8 from 1 to 8", freqs.values)
		}
		delete(c.tensors, "rope_freqs.weight")
		params := map[string]*nn.Parameter{}
		for _, p := range m.Parameters() {
			params[p.Name()] = p
		}
		for name, want := range map[string]string{
			"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight",
			"blk.0.attn_norm.weight": "model.layers.0.input_layernorm.weight", "blk.0.ffn_norm.weight": "model.layers.0.post_attention_layernorm.weight",
			"blk.0.attn_q.weight": "model.layers.0.self_attn.q_proj.weight", "blk.0.attn_q.bias": "model.layers.0.self_attn.q_proj.bias",
			"blk.0.attn_k.weight": "model.layers.0.self_attn.k_proj.weight", "blk.0.attn_k.bias": "model.layers.0.self_attn.k_proj.bias",
			"blk.0.attn_v.weight": "model.layers.0.self_attn.v_proj.weight", "blk.0.attn_v.bias": "model.layers.0.self_attn.v_proj.bias",
			"blk.0.attn_output.weight": "model.layers.0.self_attn.o_proj.weight", "blk.0.attn_output.bias": "model.layers.0.self_attn.o_proj.bias",
			"blk.0.ffn_gate.weight": "model.layers.0.mlp.gate_proj.weight", "blk.0.ffn_up.weight": "model.layers.0.mlp.up_proj.weight",
			"blk.0.ffn_down.weight": "model.layers.0.mlp.down_proj.weight",
		} {
			checkTensor(t, name, kind, number, c.tensors[name], params[want])
			delete(c.tensors, name)
		}
		if len(c.tensors) > 0 {
			t.Errorf("%s: the file also has %v", kind, slices.Collect(maps.Keys(c.tensors)))
		}
	}
}

// A large matrix is converted in parts of whole heads.
func TestLargeMatrix(t *testing.T) {
	dev := cputest.New(t)
	m := newModel(t, dev, decoder.Config{Vocab: 280, Hidden: 40, Feedforward: 8, Heads: 1700, KeyHeads: 1, HeadSize: 16, Layers: make([]decoder.Layer, 1)}, nil)
	path := filepath.Join(t.TempDir(), "model.gguf")
	if err := gguf.Write(t.Context(), path, m, sentencePiece(t), gguf.F32); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(m.Parameters(), func(p *nn.Parameter) bool { return p.Name() == "model.layers.0.self_attn.q_proj.weight" })
	checkTensor(t, "blk.0.attn_q.weight", gguf.F32, 0, read(t, path).tensors["blk.0.attn_q.weight"], m.Parameters()[i])
}

// GPT-2 has llama.cpp's names, and Float32 where llama.cpp wants it.
func TestGPT2(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.gguf")
	m := newModel(t, cputest.New(t), configs["gpt2"], nil)
	if err := gguf.Write(t.Context(), path, m, byteLevel(t, map[string]any{"type": "ByteLevel"}), gguf.Q8_0); err != nil {
		t.Fatal(err)
	}
	c := read(t, path)
	for key, want := range map[string]any{
		"general.architecture": "gpt2", "gpt2.context_length": uint32(128), "gpt2.block_count": uint32(3), "gpt2.embedding_length": uint32(64),
		"gpt2.feed_forward_length": uint32(256), "gpt2.attention.head_count": uint32(4), "gpt2.attention.layer_norm_epsilon": float32(1e-5),
	} {
		if c.keys[key] != want {
			t.Errorf("%s is %v, want %v", key, c.keys[key], want)
		}
	}
	want := map[string]uint32{"token_embd.weight": 8, "position_embd.weight": 0, "output_norm.weight": 0, "output_norm.bias": 0}
	for i := range 3 {
		for _, name := range []string{"attn_norm", "attn_qkv", "attn_output", "ffn_norm", "ffn_up", "ffn_down"} {
			kind := uint32(8)
			if strings.HasSuffix(name, "_norm") {
				kind = 0
			}
			want[fmt.Sprintf("blk.%d.%s.weight", i, name)], want[fmt.Sprintf("blk.%d.%s.bias", i, name)] = kind, 0
		}
	}
	got := map[string]uint32{}
	for name, x := range c.tensors {
		got[name] = x.kind
	}
	if !maps.Equal(got, want) {
		t.Errorf("the tensors' types are %v, want %v", got, want)
	}
}

// checkTensor checks the type, shape and elements of a tensor.
func checkTensor(t *testing.T, name string, kind gguf.Type, number uint32, got contentsTensor, p *nn.Parameter) {
	shape := p.Shape()
	n := uint64(shape[len(shape)-1])
	switch {
	case len(shape) == 1:
		kind, number = gguf.F32, 0
	case kind == gguf.Q8_0 && n%32 != 0:
		kind, number = gguf.F16, 1
	}
	if got.kind != number || got.shape[0] != n || len(got.shape) != len(shape) || len(got.values) != shape.Len() {
		t.Fatalf("%s: %s is of type %d%v, want %d%v", kind, name, got.kind, got.shape, number, shape)
	}
	want, length := must.New(p.Var().Read(t.Context())), shape.Len()/shape[0]
	for i := range shape[0] {
		from := i
		if strings.Contains(name, "attn_q.") || strings.Contains(name, "attn_k.") { // pairs of a head of 16 rows are adjacent
			from = i/16*16 + i%16/2 + i%2*8
		}
		row := want[from*length : (from+1)*length]
		for j, w := range row {
			allowed := math.Abs(w) * map[gguf.Type]float64{gguf.F32: 0, gguf.F16: 0x1p-11, gguf.BF16: 0x1p-8}[kind]
			if kind == gguf.F16 {
				allowed = max(allowed, 0x1p-25) // subnormal numbers
			}
			if kind == gguf.Q8_0 {
				block := row[j/32*32 : j/32*32+32]
				allowed = max(slices.Max(block), -slices.Min(block)) / 127 * 0.57 // half a step, and the factor's rounding
			}
			if x := got.values[i*length+j]; math.Abs(x-w) > allowed {
				t.Fatalf("%s: element %d, %d of %s is %v, want %v", kind, i, j, name, x, w)
			}
		}
	}
}

// The keys of a tokenizer are from all the files in which folders of the hub have them.
func TestTokenizerKeys(t *testing.T) {
	dev := cputest.New(t)
	m := newModel(t, dev, llama(func(*decoder.Config) {}), nil)
	folder, path := byteLevel(t, map[string]any{"type": "ByteLevel"}), filepath.Join(t.TempDir(), "model.gguf")
	check := func(want map[string]any) {
		t.Helper()
		if err := gguf.Write(t.Context(), path, m, folder, gguf.F32); err != nil {
			t.Fatal(err)
		}
		keys := read(t, path).keys
		for key, w := range want {
			if got := keys["tokenizer."+key]; !reflect.DeepEqual(got, w) {
				t.Errorf("%s is %v, want %v", key, got, w)
			}
		}
	}
	check(map[string]any{
		"ggml.model": "gpt2", "ggml.pre": "gpt-2", "ggml.merges": []any{"h e", "l l", "he ll", "hell o", "Ġ w", "1 2"},
		"ggml.bos_token_id": uint32(262), "ggml.eos_token_id": uint32(262), "ggml.padding_token_id": nil, "ggml.scores": nil,
		"ggml.add_bos_token": false, "ggml.add_eos_token": false, "chat_template": "{{ messages }}",
	})
	write(t, folder, "tokenizer_config.json", `{"bos_token": null, "chat_template": [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]}`)
	write(t, folder, "special_tokens_map.json", `{"pad_token": {"content": "hello"}}`)
	write(t, folder, "config.json", `{"bos_token_id": 7, "eos_token_id": [1, 2], "pad_token_id": 3, "unk_token_id": -1}`)
	check(map[string]any{
		"ggml.bos_token_id": uint32(7), "ggml.eos_token_id": nil, "ggml.padding_token_id": uint32(259), "ggml.unknown_token_id": nil, "chat_template": "d",
	})
	around := `{"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "he"}}, {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "<|end|>"}}]}`
	text := string(must.New(os.ReadFile(filepath.Join(folder, "tokenizer.json"))))
	write(t, folder, "tokenizer.json", strings.Replace(text, `"post_processor":null`, `"post_processor":`+around, 1))
	write(t, folder, "tokenizer_config.json", `{"bos_token": "<|end|>", "eos_token": "<|end|>"}`)
	check(map[string]any{"ggml.add_bos_token": false, "ggml.add_eos_token": true, "chat_template": nil})
	write(t, folder, "tokenizer_config.json", `{"bos_token": "<|end|>", "eos_token": "<|end|>", "add_bos_token": true, "add_eos_token": false}`)
	check(map[string]any{"ggml.add_bos_token": true, "ggml.add_eos_token": false})
	write(t, folder, "chat_template.jinja", "{{ file }}")
	check(map[string]any{"chat_template": "{{ file }}"})
}

// A model or a tokenizer that llama.cpp cannot have is an error that says what, and no file is written.
func TestErrors(t *testing.T) {
	dev := cputest.New(t)
	rope := func(r decoder.Rope) decoder.Config { return llama(func(c *decoder.Config) { c.Rope = r }) }
	l3 := decoder.Rope{Scaling: decoder.Llama3Scaling, Factor: 8, LowFrequency: 1, HighFrequency: 4}
	replaced := func(old, new string) func(string) string {
		return func(text string) string {
			if !strings.Contains(text, old) {
				t.Fatalf("no %s in the tokenizer", old)
			}
			return strings.Replace(text, old, new, 1)
		}
	}
	for name, c := range map[string]struct {
		config    any
		kind      gguf.Type
		tokenizer func(text string) string
		want      string
	}{
		"type":          {kind: "q4_0", want: `type "q4_0", want f32, f16, bf16 or q8_0`},
		"part of heads": {config: rope(decoder.Rope{Fraction: 0.5}), want: "0.5 of each head has rotary positions, want 1 for llama.cpp's architecture llama"},
		"yarn":          {config: rope(decoder.Rope{Scaling: decoder.YarnScaling, Factor: 2, NoTruncate: true}), want: "yarn scaling without truncation"},
		"llama3 in qwen2": {config: llama(func(c *decoder.Config) { c.Rope, c.QKVBias = l3, true }),
			want: "llama3 scaling of rotary positions, want linear or yarn for llama.cpp's architecture qwen2"},
		"layers without rotary": {config: llama(func(c *decoder.Config) { c.Layers[1].NoRope = true }), want: "llama.cpp has no such architecture"},
		"norms and biases":      {config: llama(func(c *decoder.Config) { c.NormHeads, c.QKVBias = true, true }), want: "llama.cpp has no such architecture"},
		"large token":           {config: llama(func(c *decoder.Config) { c.Vocab = 260 }), want: "want less than 260, the vocabulary of the model"},
		"no tokenizer":          {tokenizer: func(string) string { return "" }, want: "tokenizer.json: no such file or directory: want the file that transformers' save_pretrained writes"},
		"bad tokenizer":         {tokenizer: func(string) string { return "{" }, want: "tokenizer.json: unexpected end of JSON input"},
		"unigram":               {tokenizer: replaced(`"BPE"`, `"Unigram"`), want: `tokenizer.json: a model of type "Unigram", want BPE`},
		"characters":            {tokenizer: replaced(`"pre_tokenizer":{"type":"ByteLevel"`, `"pre_tokenizer":{"type":"Whitespace"`), want: "a vocabulary without bytes"},
		"split":                 {tokenizer: replaced(`"pre_tokenizer":{"type"`, `"pre_tokenizer":{"use_regex":false,"type"`), want: "pre-tokenizer [], want that of GPT-2, Llama 3"},
	} {
		if c.config == nil {
			c.config = llama(func(*decoder.Config) {})
		}
		folder, path := byteLevel(t, map[string]any{"type": "ByteLevel"}), filepath.Join(t.TempDir(), "model.gguf")
		if c.tokenizer != nil {
			file := filepath.Join(folder, "tokenizer.json")
			text := c.tokenizer(string(must.New(os.ReadFile(file))))
			write(t, folder, "tokenizer.json", text)
			if text == "" {
				os.Remove(file)
			}
		}
		err := gguf.Write(t.Context(), path, newModel(t, dev, c.config, nil), folder, cmp.Or(c.kind, gguf.F16))
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Count(err.Error(), "\n") > 0 {
			t.Errorf("%s: the error is %v, want %q", name, err, c.want)
		}
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s: there is a file", name)
		}
	}
	folder := byteLevel(t, map[string]any{"type": "ByteLevel"})
	m := newModel(t, dev, llama(func(*decoder.Config) {}), func(_ int, x []float32) { x[3] = 70000 })
	err := gguf.Write(t.Context(), filepath.Join(t.TempDir(), "model.gguf"), m, folder, gguf.F16)
	if want := "tensor token_embd.weight: 70000 is too large for f16, want bf16 or f32"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the error is %v, want %q", err, want)
	}
	if _, err := lora.Add(m, &lora.Options{Rank: 2, Targets: []string{"q_proj"}}); err != nil {
		t.Fatal(err)
	}
	err = gguf.Write(t.Context(), filepath.Join(t.TempDir(), "model.gguf"), m, folder, gguf.F32)
	if want := "model.layers.0.self_attn.q_proj.lora_A.weight is an adapter: merge the adapters first"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the error is %v, want %q", err, want)
	}
}

func llama(change func(c *decoder.Config)) decoder.Config {
	c := decoder.Config{
		Vocab: 270, Hidden: 64, Feedforward: 96, Heads: 4, KeyHeads: 2, Layers: make([]decoder.Layer, 4), MaxPositions: 128, NormEps: 1e-5,
	}
	change(&c)
	return c
}

// configs are models of each architecture.
var configs = map[string]any{
	"llama": llama(func(c *decoder.Config) {
		c.Rope = decoder.Rope{Scaling: decoder.Llama3Scaling, Theta: 500000, Factor: 8, LowFrequency: 1, HighFrequency: 4, FirstTrained: 16}
	}),
	"llama with biases": llama(func(c *decoder.Config) {
		c.QKVBias, c.OutBias, c.FeedforwardBias = true, true, true
		c.Rope = decoder.Rope{Scaling: decoder.LinearScaling, Factor: 2}
	}),
	"llama yarn": llama(func(c *decoder.Config) {
		c.Rope, c.HeadSize = decoder.Rope{Scaling: decoder.YarnScaling, Factor: 4, FirstTrained: 16, Attention: 1.3}, 24
	}),
	"smollm2": llama(func(c *decoder.Config) { c.Tied, c.KeyHeads = true, 4 }),
	"mistral": llama(func(c *decoder.Config) {
		for i := range c.Layers {
			c.Layers[i].Window = 100
		}
	}),
	"qwen2": llama(func(c *decoder.Config) {
		c.QKVBias, c.Rope = true, decoder.Rope{Theta: 1e6, Scaling: decoder.YarnScaling, Factor: 4, FirstTrained: 32}
	}),
	"qwen3":   llama(func(c *decoder.Config) { c.NormHeads, c.HeadSize, c.Tied = true, 32, true }),
	"smollm3": llama(func(c *decoder.Config) { c.Layers[3].NoRope, c.Tied = true, true }),
	"gpt2":    decoder.GPT2Config{Vocab: 270, Positions: 128, Layers: 3, Heads: 4, Hidden: 64},
}

// newModel returns a model with random weights, of which matrices are changed by round unless it is nil.
func newModel(t *testing.T, dev device.Device, config any, round func(rowLength int, x []float32)) (m *decoder.Model) {
	t.Helper()
	if c, ok := config.(decoder.Config); ok {
		m = must.New(decoder.New(c))
	} else {
		m = must.New(decoder.NewGPT2(config.(decoder.GPT2Config)))
	}
	for _, p := range m.Parameters() {
		init := nn.Normal(0, 0.15)
		if len(p.Shape()) == 1 && strings.HasSuffix(p.Name(), ".weight") {
			init = nn.Normal(1, 0.1)
		}
		p.SetInit(func(dev device.Device, dst device.Tensor, seed, offset uint64) error {
			err := init(dev, dst, seed, offset)
			if len(dst.Shape) == 2 && round != nil && !strings.Contains(p.Name(), "wpe") {
				round(dst.Shape[1], device.Elements[float32](dst))
			}
			return err
		})
	}
	if err := nn.Place(m, dev, 1); err != nil {
		t.Fatal(err)
	}
	return m
}

// rounding returns a function that rounds the elements of a matrix as a file of a type does.
func rounding(kind gguf.Type) func(rowLength int, x []float32) {
	return func(rowLength int, x []float32) {
		if kind == gguf.Q8_0 && rowLength%32 == 0 {
			for block := range slices.Chunk(x, 32) {
				var most float64
				for _, v := range block {
					most = max(most, math.Abs(float64(v)))
				}
				factor := float64(kernels.FromF16(kernels.F16(float32(most / 127))))
				for i, v := range block {
					block[i] = float32(math.Round(float64(v)/most*127) * factor)
				}
			}
			return
		}
		for i, v := range x {
			switch kind {
			case gguf.F16, gguf.Q8_0:
				x[i] = kernels.FromF16(kernels.F16(v))
			case gguf.BF16:
				x[i] = kernels.FromBF16(kernels.BF16(v))
			}
		}
	}
}

// byteLevel returns a folder with a tokenizer of bytes.
func byteLevel(t *testing.T, pretokenizer any) string {
	dir := t.TempDir()
	vocab := map[string]int{}
	next := 256
	for b := range 256 {
		r := rune(b)
		if b < '!' || b > '~' && b < 0xa1 || b == 0xad { // bytes that are not printed have other characters
			r = rune(next)
			next++
		}
		vocab[string(r)] = b
	}
	merges := []string{"h e", "l l", "he ll", "hell o", "Ġ w", "1 2"}
	for i, m := range []string{"he", "ll", "hell", "hello", "Ġw", "12"} {
		vocab[m] = 256 + i
	}
	file := map[string]any{
		"added_tokens":  []any{map[string]any{"id": 262, "content": "<|end|>", "special": true}},
		"pre_tokenizer": pretokenizer,
		"normalizer":    nil, "post_processor": nil, "decoder": map[string]any{"type": "ByteLevel"},
		"model": map[string]any{"type": "BPE", "vocab": vocab, "merges": merges},
	}
	write(t, dir, "tokenizer.json", string(must.New(json.Marshal(file))))
	write(t, dir, "tokenizer_config.json", `{"bos_token": "<|end|>", "eos_token": {"content": "<|end|>"}, "chat_template": "{{ messages }}"}`)
	return dir
}

// sentencePiece returns a folder with a tokenizer of characters like SentencePiece's, with bytes for those that the
// vocabulary lacks.
func sentencePiece(t *testing.T) string {
	dir := t.TempDir()
	vocab := map[string]int{"<unk>": 0, "<s>": 1, "</s>": 2}
	for b := range 256 {
		vocab[fmt.Sprintf("<0x%02X>", b)] = 3 + b
	}
	merges := [][2]string{{"▁", "a"}, {"l", "l"}, {"o", "r"}, {"e", "ll"}, {"▁", "w"}, {"or", "l"}, {"▁w", "orl"}}
	for _, token := range []string{"▁", "a", "b", "d", "e", "h", "l", "o", "r", "w"} {
		vocab[token] = len(vocab)
	}
	for _, m := range merges {
		vocab[m[0]+m[1]] = len(vocab)
	}
	special := func(id int, token string) any { return map[string]any{"id": id, "content": token, "special": true} }
	file := map[string]any{
		"added_tokens": []any{special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")},
		"normalizer": map[string]any{"type": "Sequence", "normalizers": []any{
			map[string]any{"type": "Prepend", "prepend": "▁"},
			map[string]any{"type": "Replace", "pattern": map[string]any{"String": " "}, "content": "▁"},
		}},
		"post_processor": map[string]any{"type": "TemplateProcessing", "single": []any{
			map[string]any{"SpecialToken": map[string]any{"id": "<s>"}}, map[string]any{"Sequence": map[string]any{"id": "A"}},
		}},
		"pre_tokenizer": nil, "decoder": map[string]any{"type": "Fuse"},
		"model": map[string]any{"type": "BPE", "vocab": vocab, "merges": merges, "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true},
	}
	write(t, dir, "tokenizer.json", string(must.New(json.Marshal(file))))
	write(t, dir, "tokenizer_config.json", `{"bos_token": "<s>", "eos_token": {"content": "</s>"}, "unk_token": "<unk>"}`)
	return dir
}
