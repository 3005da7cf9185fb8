package examples

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/goddp/goddp/checkpoint/safetensors"
	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/device"
)

// TestGPTLearns trains on a text that repeats itself. It checks the loss, the sample and the names of the
// saved parameters, and that the loss is the same with --checkpoint, which computes blocks again, and with --zero.
func TestGPTLearns(t *testing.T) {
	dir := t.TempDir()
	text := strings.Repeat("the cat sat on the mat. ", 200)
	if err := os.WriteFile(filepath.Join(dir, "text"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--text", "text", "--layers", "2", "--heads", "2", "--embed", "32", "--context", "17", "--batch", "8",
		"--steps", "100", "--warmup", "10", "--lr", "0.01", "--sample", "50", "--prompt", "the cat", "--log", "run.jsonl", "--save", "gpt.safetensors"}
	out := launch(t, dir, 2, "gpt", args...)
	loss := func(out string) string {
		m := regexp.MustCompile(`step 100/100  loss (\S+)`).FindStringSubmatch(out)
		if m == nil {
			t.Fatalf("no last loss in\n%s", out)
		}
		return m[1]
	}
	if last, err := strconv.ParseFloat(loss(out), 64); err != nil || !(last < 0.5) {
		t.Errorf("the last loss is %v, %v, want less than 0.5, in\n%s", last, err, out)
	}
	if !strings.Contains(out, "sat on th") {
		t.Errorf("the sample holds nothing of the text:\n%s", out)
	}
	f, err := safetensors.Open(filepath.Join(dir, "gpt.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for name, shape := range map[string]device.Shape{
		"transformer.wte.weight": {256, 32}, "transformer.wpe.weight": {17, 32}, "transformer.h.0.ln_1.weight": {32},
		"transformer.h.1.attn.c_attn.weight": {96, 32}, "transformer.h.1.attn.c_proj.bias": {32},
		"transformer.h.0.mlp.c_fc.weight": {128, 32}, "transformer.ln_f.bias": {32},
	} {
		if got, ok := f.Tensors()[name]; !ok || !shape.Equal(got.Shape) {
			t.Errorf("%s is %v, want %v", name, got.Shape, shape)
		}
	}
	for _, option := range []string{"--checkpoint", "--zero"} {
		if again := launch(t, dir, 2, "gpt", append(args, option)...); loss(again) != loss(out) {
			t.Errorf("with %s the last loss is %s, else %s", option, loss(again), loss(out))
		}
	}
}

// TestGPTValidates continues from saved parameters with a learning rate of 0, so that the validation loss is that
// of the parameters. The text to validate with is the text to train on, taken in order.
func TestGPTValidates(t *testing.T) {
	dir := t.TempDir()
	shard, err := os.Create(filepath.Join(dir, "shard.bin"))
	if err != nil {
		t.Fatal(err)
	}
	defer shard.Close()
	if _, err := data.WriteTokens(shard, func(yield func(uint16) bool) {
		for i := range 65 {
			if !yield(uint16(i * i % 7)) {
				return
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	args := []string{"--tokens", "shard.bin", "--in-order", "--layers", "1", "--heads", "1", "--embed", "8", "--context", "8",
		"--warmup", "1", "--sample", "0", "--save", "gpt.safetensors"}
	launch(t, dir, 2, "gpt", append(args, "--batch", "1", "--steps", "4")...)
	out := launch(t, dir, 2, "gpt", append(args, "--batch", "4", "--steps", "2", "--lr", "0", "--init", "gpt.safetensors",
		"--validate", "shard.bin", "--validate-batches", "1", "--validate-every", "1")...)
	losses := regexp.MustCompile(`step 2/2  loss (\S+)`).FindStringSubmatch(out)
	validation := regexp.MustCompile(`validation_loss (\S+)`).FindAllStringSubmatch(out, -1)
	if losses == nil || len(validation) != 2 || validation[0][1] != losses[1] || validation[1][1] != losses[1] {
		t.Errorf("no validation loss equal to the loss after both steps in\n%s", out)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "gpt"), append(args, "--batch", "1", "--steps", "4", "--validate", "shard.bin")...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "--validate-batches 20, want at least 1 of each, and at most the 8 batches") {
		t.Errorf("%v, no refusal of too many batches in\n%s", err, out)
	}
}

func TestGPTReportsInvalidInput(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "text"), []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	shard := binary.LittleEndian.AppendUint32(nil, 20240520)
	shard = binary.LittleEndian.AppendUint32(shard, 1)
	shard = binary.LittleEndian.AppendUint32(shard, 1000)
	if err := os.WriteFile(filepath.Join(dir, "cut.bin"), append(shard, make([]byte, 2000-12)...), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"cut.bin: at byte 2000: truncated: the header says 1000 tokens, which take 3024 bytes": {"--tokens", "cut.bin"},
		`--text "" and --tokens "", want one of them`:                                          {},
		"text: 5 bytes, want more than one window of 128":                                      {"--text", "text"},
		`--size 1T, want one of ["124M" "1558M" "355M" "774M"]`:                                {"--text", "text", "--size", "1T"},
		"4 layers and 3 heads in 128 elements":                                                 {"--text", "text", "--heads", "3"},
		`no file matches "none*.bin"`:                                                          {"--tokens", "none*.bin"},
		"--steps 5, --batch 8 and --warmup 9, want at least 1":                                 {"--text", "text", "--context", "2", "--steps", "5", "--warmup", "9"},
	} {
		cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "gpt"), args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%q: %v, no %q in\n%s", args, err, want, out)
		}
	}
}
