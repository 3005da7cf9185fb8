// Package outside uses goddp as its users do: from modules of their own.
package outside

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goddp/goddp/internal/testkit"
)

// module makes a folder a module that requires goddp, which is this tree.
func module(t *testing.T, dir string) {
	t.Helper()
	testkit.Need(t, testkit.Command("go"))
	root := testkit.ModuleRoot(t)
	requires, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(requires), "\n") // without the line that names the module
	text = fmt.Sprintf("module example.com/train\nrequire github.com/goddp/goddp v0.0.0\nreplace github.com/goddp/goddp => %s\n", root) +
		regexp.MustCompile(`(?m)^tool .*$`).ReplaceAllString(text, "")
	// go cannot look up the checksums of an unpublished module's requirements: they are in its go.sum.
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, map[string]string{"go.mod": text, "go.sum": string(sums)})
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// run runs a shell command in dir, on the CPU, and returns its output. It fails the test if the command fails.
func run(t *testing.T, dir, line string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
	cmd.Dir, cmd.Env = dir, testkit.Env("GODDP_DEVICE=cpu", "GOFLAGS=-mod=mod", "GOWORK=off")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return string(out)
}

// block returns the first code block of a page that is marked with language and starts with begin.
func block(t *testing.T, page, language, begin string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testkit.ModuleRoot(t), page))
	if err != nil {
		t.Fatal(err)
	}
	for _, rest := range strings.Split(string(text), "```"+language+"\n")[1:] {
		if block, _, ok := strings.Cut(rest, "```"); ok && strings.HasPrefix(block, begin) {
			return block
		}
	}
	t.Fatalf("%s has no block in %s that starts with %q", page, language, begin)
	return ""
}

// The README's program runs in another module, started by the README's commands.
func TestReadme(t *testing.T) {
	testkit.Long(t)
	testkit.Need(t, testkit.ModuleProxy) // go mod tidy downloads modules that only the tests of dependencies need
	dir := t.TempDir()
	module(t, dir)
	write(t, dir, map[string]string{"main.go": block(t, "README.md", "go", "package main")})
	for line := range strings.Lines(block(t, "README.md", "sh", "go mod edit -tool")) {
		out := run(t, dir, line)
		if strings.Contains(line, "golaunch --nproc-per-node") && !strings.Contains(out, "[default0]: ") {
			t.Errorf("%s printed\n%s", line, out)
		}
	}
}

// docs/migrate.md's program in Go runs in another module, and learns.
func TestMigratedProgram(t *testing.T) {
	testkit.Long(t)
	dir := t.TempDir()
	module(t, dir)
	write(t, dir, map[string]string{"main.go": block(t, "docs/migrate.md", "go", "package main")})
	out := run(t, dir, "go mod edit -tool=github.com/goddp/goddp/cmd/golaunch && go tool golaunch --nproc-per-node 2 .")
	losses := regexp.MustCompile(`epoch \d loss (\S+)`).FindAllStringSubmatch(out, -1)
	var last float64
	if len(losses) == 3 {
		fmt.Sscan(losses[2][1], &last)
	}
	if !(last > 0 && last < 0.1) { // the sum of eight numbers has the variance 8
		t.Errorf("the last loss is %v, want it below 0.1, in\n%s", last, out)
	}
	if _, err := os.Stat(filepath.Join(dir, "net.safetensors")); err != nil {
		t.Error(err)
	}
}

// A module outside the tree implements each interface that is meant for extensions, and its tests pass.
func TestExtensions(t *testing.T) {
	testkit.Long(t)
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "extensions"))); err != nil {
		t.Fatal(err)
	}
	module(t, dir)
	run(t, dir, "go vet ./... && go test -count=1 ./...")
}
