package examples

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/goddp/goddp/checkpoint/safetensors"
	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit"
)

// TestGPTLearns trains on a text that repeats itself. It checks the loss, the sample and the names of the
// saved parameters, and that the loss is the same with --recompute and with --stage.
func TestGPTLearns(t *testing.T) {
	testkit.Long(t)
	text := filepath.Join(t.TempDir(), "text")
	writeText(t, text)
	train := func(steps int, more ...string) (dir, loss, stdout string) {
		dir = t.TempDir()
		args := []string{"--text", text, "--layers", "2", "--heads", "2", "--embed", "32", "--context", "17", "--batch", "8", "--log", "run.jsonl",
			"--steps", fmt.Sprint(steps), "--warmup", "5", "--lr", "0.01", "--sample", "50", "--prompt", "the cat", "--save", "gpt.safetensors"}
		stdout = launch(t, dir, 2, "gpt", append(args, more...)...).Stdout
		return dir, outcome(t, dir)[fmt.Sprint("loss of step ", steps)], stdout
	}
	dir, loss, sample := train(150)
	if last, err := strconv.ParseFloat(loss, 64); err != nil || !(last < 0.5) {
		t.Errorf("the last loss is %v, %v, want less than 0.5", last, err)
	}
	if !strings.Contains(sample, "sat on th") {
		t.Errorf("the sample holds nothing of the text:\n%s", sample)
	}
	checkShapes(t, filepath.Join(dir, "gpt.safetensors"), map[string]device.Shape{
		"transformer.wte.weight": {256, 32}, "transformer.wpe.weight": {17, 32}, "transformer.h.0.ln_1.weight": {32},
		"transformer.h.1.attn.c_attn.weight": {96, 32}, "transformer.h.1.attn.c_proj.bias": {32},
		"transformer.h.0.mlp.c_fc.weight": {128, 32}, "transformer.ln_f.bias": {32},
	})
	_, want, _ := train(10)
	for _, option := range []string{"--recompute=cheap", "--recompute=blocks", "--stage=1", "--stage=3"} {
		if _, got, _ := train(10, option); got != want || want == "" {
			t.Errorf("with %s the last loss is %s, else %s", option, got, want)
		}
	}
}

func writeText(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(strings.Repeat("the cat sat on the mat. ", 200)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// checkShapes checks the shapes of some tensors of a file.
func checkShapes(t *testing.T, path string, shapes map[string]device.Shape) {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for name, shape := range shapes {
		if got, ok := f.Tensors()[name]; !ok || !shape.Equal(got.Shape) {
			t.Errorf("%s is %v, want %v", name, got.Shape, shape)
		}
	}
}

// TestGPTValidates continues from saved parameters with a learning rate of 0, so that the validation loss is that
// of the parameters. The text to validate with is the text to train on, taken in order.
func TestGPTValidates(t *testing.T) {
	testkit.Long(t)
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
	ran := launch(t, dir, 2, "gpt", append(args, "--batch", "4", "--steps", "2", "--lr", "0", "--init", "gpt.safetensors",
		"--validate", "shard.bin", "--validate-batches", "1", "--validate-every", "1")...)
	out := ran.Stderr
	losses := regexp.MustCompile(`step 2/2  loss (\S+)`).FindStringSubmatch(out)
	validation := regexp.MustCompile(`validation_loss (\S+)`).FindAllStringSubmatch(out, -1)
	if losses == nil || len(validation) != 2 || validation[0][1] != losses[1] || validation[1][1] != losses[1] {
		t.Errorf("no validation loss equal to the loss after both steps in\n%s", out)
	}
	if ran.Stdout != "" {
		t.Errorf("--sample 0 prints %q", ran.Stdout)
	}
	r := testkit.Run(t, command(t, dir, "gpt", append(args, "--batch", "1", "--steps", "4", "--validate", "shard.bin")...))
	if want := "--validate-batches 20, want at least 1 of each, and at most the 8 batches"; r.Code == 0 || !strings.Contains(r.Stderr, want) {
		t.Errorf("exit code %d, no refusal of too many batches in\n%s", r.Code, r.Stderr)
	}
}
