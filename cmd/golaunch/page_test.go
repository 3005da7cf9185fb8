package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// torchrunFlags are the flags of PyTorch 2.10's torchrun.
const torchrunFlags = `nnodes nproc-per-node rdzv-backend rdzv-endpoint rdzv-id rdzv-conf standalone max-restarts monitor-interval
	start-method event-log-handler role module no-python run-path log-dir redirects tee local-ranks-filter duplicate-stdout-filters
	duplicate-stderr-filters node-rank master-addr master-port local-addr logs-specs numa-binding signals-to-handle shutdown-timeout
	virtual-local-rank print-completion help`

const (
	root = "../.."
	page = root + "/docs/golaunch.md"
)

// tableRows returns the rows of the page's tables that have a column for tests.
func tableRows(t *testing.T) (text string, rows []string) {
	t.Helper()
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	named := false
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		switch {
		case !strings.HasPrefix(line, "|"):
			named = false
		case strings.HasSuffix(line, "| test |"):
			named = true
		case named && !strings.HasPrefix(line, "|--"):
			rows = append(rows, line)
		}
	}
	return string(data), rows
}

// Every flag of golaunch, and every flag of torchrun, of PyTorch 2 and of the one that is installed, has a row
// on the page for people who switch.
func TestPageHasEveryFlag(t *testing.T) {
	_, rows := tableRows(t)
	first := ""
	for _, row := range rows {
		cells := strings.Split(row, "|")
		first += cells[1] + "\n"
	}
	flags := strings.Fields(torchrunFlags)
	(&options{}).define().VisitAll(func(f *pflag.Flag) { flags = append(flags, f.Name) })
	if out, err := exec.CommandContext(t.Context(), "/usr/bin/python3", "-m", "torch.distributed.run", "--help").Output(); err != nil {
		t.Logf("no torchrun is installed: %v", err)
	} else {
		for _, m := range regexp.MustCompile(`--([a-z][a-z_-]*)`).FindAllStringSubmatch(strings.SplitAfter(string(out), "training_script ...")[0], -1) {
			flags = append(flags, strings.ReplaceAll(m[1], "_", "-"))
		}
	}
	for _, name := range flags {
		if !strings.Contains(first, "`--"+name+"`") {
			t.Errorf("%s has no row for --%s", page, name)
		}
	}
}

// Every row names a test, and every test that the page names exists.
func TestPageNamesTests(t *testing.T) {
	text, rows := tableRows(t)
	name := regexp.MustCompile("`([a-z]+)\\.(Test[A-Za-z0-9]+)`")
	for _, row := range rows {
		if !name.MatchString(row) {
			t.Errorf("no test proves the row %s", row)
		}
	}
	if len(rows) < 60 {
		t.Errorf("the page has %d rows with tests", len(rows))
	}
	dirs := map[string]string{
		"golaunch": "cmd/golaunch", "launcher": "launcher", "rendezvous": "internal/rendezvous", "threads": "internal/threads", "hosts": "test/hosts",
	}
	sources := map[string]string{}
	for pkg, dir := range dirs {
		files, _ := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
		for _, file := range files {
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			sources[pkg] += string(source)
		}
	}
	for _, m := range name.FindAllStringSubmatch(text, -1) {
		if !strings.Contains(sources[m[1]], "\nfunc "+m[2]+"(t *testing.T)") {
			t.Errorf("%s names %s, which does not exist", page, m[0])
		}
	}
}

// golaunch accepts the commands of the page.
func TestPageHasCommandsThatParse(t *testing.T) {
	text, _ := tableRows(t)
	n := 0
	for line := range strings.Lines(text) {
		command, ok := strings.CutPrefix(line, "golaunch --")
		if !ok {
			continue
		}
		n++
		o, err := parseFlags(strings.Fields(strings.ReplaceAll("--"+command, " gpu ", " 2 ")), func(string) (string, bool) { return "", false })
		if err != nil {
			t.Errorf("golaunch --%s%v", command, err)
		} else if _, err := os.Stat(filepath.Join(root, o.command[0])); err != nil {
			t.Errorf("golaunch --%s%v", command, err)
		}
	}
	if n < 6 {
		t.Errorf("the page has %d commands", n)
	}
}
