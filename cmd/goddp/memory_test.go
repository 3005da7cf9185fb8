package main

import (
	"strings"
	"testing"

	"github.com/goddp/goddp/internal/testkit/cputest"
)

// The exit code says whether the model fits. A part that takes nothing is not listed.
func TestMemory(t *testing.T) {
	dir := modelFolder(t, cputest.New(t))
	for _, c := range []struct {
		args      string
		code      int
		has, less []string
	}{
		{"--length 16", 0, []string{"weights", "masters", "sum", "it fits"}, []string{"frozen", "slots"}},
		{"--length 16 --lora 4 --recompute blocks", 0, []string{"frozen weights"}, []string{"masters"}},
		{"--length 16 --lora 4 --stage 3 --ranks 2", 0, []string{"frozen weights", "slots"}, []string{"masters"}},
		{"--length 16 --stage 3 --ranks 2 --moments16 --recompute cheap", 0, []string{"slots"}, nil},
		{"--length 16 --gpu 1", 1, []string{"it does not fit"}, []string{"it fits"}},
		{"--recompute all", 2, []string{`--recompute "all": want cheap or blocks`}, nil},
		{"--gpu nan", 2, []string{"--gpu NaN: want more than 0 GiB"}, nil},
		{"--stage 4", 2, []string{"a stage from 0 to 3"}, nil},
	} {
		code, out, stderr := goddp(t, append([]string{"memory", dir}, strings.Fields(c.args)...)...)
		out += stderr
		if code != c.code {
			t.Errorf("%s: exit code %d, want %d: %s", c.args, code, c.code, out)
		}
		for _, want := range c.has {
			if !strings.Contains(out, want) {
				t.Errorf("%s: no %q in\n%s", c.args, want, out)
			}
		}
		for _, not := range c.less {
			if strings.Contains(out, not) {
				t.Errorf("%s: %q in\n%s", c.args, not, out)
			}
		}
	}
}
