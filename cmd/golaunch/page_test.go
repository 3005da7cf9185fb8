package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/goddp/goddp/internal/testkit"
)

// torchrunFlags are the flags of PyTorch 2.10's torchrun.
const torchrunFlags = `nnodes nproc-per-node rdzv-backend rdzv-endpoint rdzv-id rdzv-conf standalone max-restarts monitor-interval
	start-method event-log-handler role module no-python run-path log-dir redirects tee local-ranks-filter duplicate-stdout-filters
	duplicate-stderr-filters node-rank master-addr master-port local-addr logs-specs numa-binding signals-to-handle shutdown-timeout
	virtual-local-rank print-completion help`

const root = "../.."

// readPage returns the page for people who switch from torchrun, and the first cells of its tables' rows.
func readPage(t *testing.T) (text, first string) {
	t.Helper()
	data, err := os.ReadFile(root + "/docs/golaunch.md")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if row, isRow := strings.CutPrefix(line, "|"); isRow {
			cell, _, _ := strings.Cut(row, "|")
			first += cell + "\n"
		}
	}
	return string(data), first
}

// Every flag of golaunch, and every flag of torchrun, of PyTorch 2 and of the one that is installed, has a row on the page.
func TestPageHasEveryFlag(t *testing.T) {
	_, first := readPage(t)
	flags := strings.Fields(torchrunFlags)
	(&options{}).define().VisitAll(func(f *pflag.Flag) { flags = append(flags, f.Name) })
	if testkit.IsLong() {
		if out, err := exec.CommandContext(t.Context(), testkit.Interpreter(), "-m", "torch.distributed.run", "--help").Output(); err != nil {
			t.Logf("no torchrun is installed: %v", err)
		} else {
			for _, m := range regexp.MustCompile(`--([a-z][a-z_-]*)`).FindAllStringSubmatch(strings.SplitAfter(string(out), "training_script ...")[0], -1) {
				flags = append(flags, strings.ReplaceAll(m[1], "_", "-"))
			}
		}
	}
	for _, name := range flags {
		if !strings.Contains(first, "`--"+name+"`") {
			t.Errorf("docs/golaunch.md has no row for --%s", name)
		}
	}
}

// golaunch accepts the commands of the page.
func TestPageHasCommandsThatParse(t *testing.T) {
	text, _ := readPage(t)
	n := 0
	for line := range strings.Lines(text) {
		command, ok := strings.CutPrefix(line, "golaunch --")
		if !ok {
			continue
		}
		n++
		o := parse(t, strings.Fields(strings.ReplaceAll("--"+command, " gpu ", " 2 "))...)
		if _, err := os.Stat(filepath.Join(root, o.command[0])); err != nil {
			t.Errorf("golaunch --%s%v", command, err)
		}
	}
	if n < 6 {
		t.Errorf("the page has %d commands", n)
	}
}
