package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/testkit/commtest"
)

// Anything but a regular file in place of a manifest or a share makes the checkpoint corrupt, so that the one before it is
// loaded. In place of the file latest it is an error. Nothing waits for a pipe.
func TestOtherKindsOfFiles(t *testing.T) {
	base := t.TempDir()
	commtest.OnGoroutines(t, 2, nil, func(pg *comm.ProcessGroup) error {
		_, err := saved(t.Context(), pg, base, plain, 2)
		if err == nil {
			_, err = saved(t.Context(), pg, base, plain, 3)
		}
		return err
	})
	for kind, create := range map[string]func(path string) error{
		"a named pipe": func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a device":     func(path string) error { return os.Symlink("/dev/zero", path) },
		"a socket": func(path string) error {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: "socket"})
			if err != nil {
				return err
			}
			l.SetUnlinkOnClose(false)
			return errors.Join(os.Rename("socket", path), l.Close())
		},
		"a folder": func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		for _, name := range []string{manifestName, shareName(0, 2), shareName(1, 2), latestName} {
			t.Chdir(t.TempDir()) // a path of a socket has at most 107 bytes
			if err := os.CopyFS("run", os.DirFS(base)); err != nil {
				t.Fatal(err)
			}
			step := filepath.Join("run", "step-00000003")
			path := filepath.Join(step, name)
			if name == latestName {
				path = filepath.Join("run", name)
			}
			if err := errors.Join(os.Remove(path), create(path)); err != nil {
				t.Fatal(err)
			}
			quiet := &comm.Options{Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
			if name == latestName {
				commtest.OnGoroutines(t, 2, quiet, func(pg *comm.ProcessGroup) error {
					r, m, err := begin(pg, "run", plain, 2, Options{})
					if err != nil {
						return err
					}
					if _, err := m.Resume(t.Context(), r.state()); err == nil || !strings.Contains(err.Error(), "latest is not a regular file but "+kind) {
						t.Errorf("%s in place of %s: %v", kind, name, err)
					}
					return m.Close()
				})
				continue
			}
			var corrupt *CorruptError
			if err := Verify(step); !errors.As(err, &corrupt) || !strings.Contains(err.Error(), name) {
				t.Errorf("%s in place of %s: %v, want it to be corrupt", kind, name, err)
			} else if kind != "a folder" && !strings.Contains(err.Error(), fmt.Sprintf("%s is not a regular file but %s", name, kind)) {
				t.Errorf("%s in place of %s: %v", kind, name, err)
			}
			commtest.OnGoroutines(t, 2, quiet, func(pg *comm.ProcessGroup) error {
				_, err := resumed(t.Context(), pg, "run", plain, 2)
				return err
			})
		}
	}
}
