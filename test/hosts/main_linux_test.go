package hosts

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

var (
	long  = flag.Bool("long", false, "run all tests, not only those that take seconds")
	kills = flag.Int("kills", 100, "number of jobs in which a process is killed, with -long")
	seed  = flag.Uint64("seed", 0, "seed of the first of these jobs")
)

// programs is the folder that holds golaunch and the worker.
var programs string

func TestMain(m *testing.M) {
	flag.Parse()
	dir, err := os.MkdirTemp("", "hosts-")
	if err == nil {
		programs = dir
		err = build(context.Background(), dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.RemoveAll(dir)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(dir)
		os.Exit(code)
	}))
}

func build(ctx context.Context, dir string) error {
	out, err := exec.CommandContext(ctx, "go", "build", "-o", dir+string(filepath.Separator),
		"github.com/goddp/goddp/cmd/golaunch", "github.com/goddp/goddp/cmd/golaunch-etcd", "github.com/goddp/goddp/test/hosts/worker").CombinedOutput()
	if err != nil {
		return fmt.Errorf("building: %w\n%s", err, out)
	}
	return nil
}

// needsLong skips a test that takes long.
func needsLong(t *testing.T) {
	t.Helper()
	if !*long {
		t.Skip("takes long: make hosts runs it")
	}
}
