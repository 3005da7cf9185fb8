//go:build cgo && linux

package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/goddp/goddp/internal/tune"
	"github.com/goddp/goddp/launcher"
)

// stopAt ends a context when a text is written to it.
type stopAt struct {
	text   string
	cancel context.CancelFunc
	mu     sync.Mutex
	got    strings.Builder
}

func (s *stopAt) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got.Write(p)
	if strings.Contains(s.got.String(), s.text) {
		s.cancel()
	}
	return len(p), nil
}

// On GPUs all of NCCL's settings are compared, in pairs with the default, as is the default itself.
func TestTuneNCCL(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	announcement := fmt.Sprintf("goddp tune: %d runs, about ", 2*3*(1+len(tune.NCCL("all_reduce"))))
	errs := &stopAt{text: announcement, cancel: cancel}
	launcher.Run(ctx, &launcher.Config{
		Args: append([]string{os.Args[0], "tune"}, tuneQuickly...), Workers: 2, Stdout: errs, Stderr: errs,
		Env: append(workerEnv(), append(fakeGPUs(t, "cuda"), "GODDP_NO_SMALL_ALLREDUCE=1")...),
	})
	if !strings.Contains(errs.got.String(), announcement) {
		t.Errorf("no %q in\n%s", announcement, &errs.got)
	}
}
