// Package outside uses goddp as its users do: from modules of their own.
package outside

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// module creates a module in a temporary folder. It requires goddp, which is replaced by this tree.
// files maps the names of the module's files to their texts.
func module(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	if proxy, err := exec.Command("go", "env", "GOPROXY").Output(); err != nil {
		t.Fatal(err)
	} else if strings.TrimSpace(string(proxy)) == "off" {
		t.Skip("go mod tidy downloads modules that only the tests of dependencies need; GOPROXY is off")
	}
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run(t, dir, "go mod init example.com/train")
	run(t, dir, "go mod edit -require=github.com/goddp/goddp@v0.0.0 -replace=github.com/goddp/goddp="+root)
	// go cannot look up the checksums of an unpublished module's requirements: they are in its go.sum.
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go.sum"), sum, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// run runs a shell command in dir, on the CPU, and returns its output. It fails the test if the command fails.
func run(t *testing.T, dir, line string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GODDP_DEVICE=cpu", "GOFLAGS=", "GOWORK=off")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return string(out)
}

// block returns the first code block of page, a Markdown text, that is marked with language and starts
// with begin.
func block(t *testing.T, page, language, begin string) string {
	t.Helper()
	for _, rest := range strings.Split(page, "```"+language+"\n")[1:] {
		text, _, ok := strings.Cut(rest, "```")
		if ok && strings.HasPrefix(text, begin) {
			return text
		}
	}
	t.Fatalf("the page has no block in %s that starts with %q", language, begin)
	return ""
}

// The README's program runs in another module, started by the README's commands.
func TestReadme(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	dir := module(t, map[string]string{"main.go": block(t, string(page), "go", "package main")})
	for line := range strings.Lines(block(t, string(page), "sh", "go mod edit -tool")) {
		out := run(t, dir, line)
		if strings.Contains(line, "golaunch --nproc-per-node") && !strings.Contains(out, "[default0]: ") {
			t.Errorf("%s printed\n%s", line, out)
		}
	}
}

// docs/migrate.md's program in Go runs in another module, and learns.
func TestMigratedProgram(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "migrate.md"))
	if err != nil {
		t.Fatal(err)
	}
	dir := module(t, map[string]string{"main.go": block(t, string(page), "go", "package main")})
	run(t, dir, "go mod edit -tool=github.com/goddp/goddp/cmd/golaunch && go mod tidy")
	out := run(t, dir, "go tool golaunch --nproc-per-node 2 .")
	var losses []float64
	for _, m := range regexp.MustCompile(`epoch \d loss (\S+)`).FindAllStringSubmatch(out, -1) {
		loss, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		losses = append(losses, loss)
	}
	if len(losses) != 3 || losses[2] > 0.1 { // the sum of eight numbers has the variance 8
		t.Errorf("the losses are %v in\n%s", losses, out)
	}
	if _, err := os.Stat(filepath.Join(dir, "net.safetensors")); err != nil {
		t.Error(err)
	}
}

// A module outside the tree implements each interface that is meant for extensions, and its tests pass.
func TestExtensions(t *testing.T) {
	files := map[string]string{}
	from := os.DirFS(filepath.Join("testdata", "extensions"))
	err := fs.WalkDir(from, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := fs.ReadFile(from, path)
		files[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := module(t, files)
	run(t, dir, "go mod tidy && go vet ./... && go test -count=1 ./...")
}
