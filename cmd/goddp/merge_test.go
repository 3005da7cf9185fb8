package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/hf"
	"github.com/goddp/goddp/internal/testkit/cputest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/lora"
)

// merge writes a model that computes what the base model and its adapters do.
func TestMerge(t *testing.T) {
	dev := cputest.New(t)
	base, adapters, merged := modelFolder(t, dev), t.TempDir(), t.TempDir()
	f := must.New(hf.Load(base, dev, nil))
	a := must.New(lora.Add(f.Model, nil))
	for _, p := range a.Parameters() {
		must.New(0, dev.Kernels().Fill(dev.Compute(), p.Var().Tensor(), 0.05))
	}
	if err := a.Save(t.Context(), adapters, base); err != nil {
		t.Fatal(err)
	}
	if err := a.Merge(); err != nil {
		t.Fatal(err)
	}
	if code, out, stderr := goddp(t, "merge", base, adapters, merged); code != 0 {
		t.Fatalf("exit code %d: %s%s", code, out, stderr)
	}
	ids := autograd.FromSlice(dev, []int64{1, 2, 3, 4}, 1, 4)
	got := must.New(must.New(hf.Load(merged, dev, nil)).Model.Forward(ids, nil).Read(t.Context()))
	if want := must.New(f.Model.Forward(ids, nil).Read(t.Context())); !slices.Equal(got, want) {
		t.Errorf("the merged model has the logits %.5v, want %.5v", got, want)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"merge", base, adapters}, 2, "goddp merge: want three folders, got 2 arguments"},
		{[]string{"merge", base, adapters, merged, "--type", "int8"}, 2, "--type int8: want float32, bfloat16 or float16"},
		{[]string{"merge", base, adapters, base}, 1, "the folder is to be read, want another one"},
		{[]string{"merge", base, base, merged}, 1, "adapter_config.json: no such file"},
	} {
		if code, _, stderr := goddp(t, c.args...); code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("%q: exit code %d, %s, want %d, %q", c.args, code, stderr, c.code, c.want)
		}
	}
}
