// Command faults shows which test catches which bug. faults.txt lists small bugs in product code. For each one, faults
// applies it to a copy of the tree and runs the tests of the packages that the list names, one rung of the ladder after
// the other, until a test fails.
//
//	go run ./test/faults                     # all faults; writes test/faults/table.md
//	go run ./test/faults reducer store/wait  # those whose names begin so; prints only
//	go run ./test/faults -rungs first
//
// It takes about half a minute for a fault that the first rung catches.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// rung is a part of the ladder of tests.
type rung struct {
	name  string
	flags []string // of go test
}

var ladder = []rung{
	{"first", nil},
	{"long", []string{"-long", "-skip=Emulated"}},
	{"emulated", []string{"-long", "-run=Emulated"}},
}

func main() {
	rungs := flag.String("rungs", "first,long,emulated", "the rungs to run, in this order")
	list := flag.String("list", "test/faults/faults.txt", "the list of faults")
	table := flag.String("table", "test/faults/table.md", "where a run of all faults writes its table")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *list, *table, strings.Split(*rungs, ","), flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, list, table string, rungs, prefixes []string) error {
	faults, err := read(list)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "faults-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	tree, err := copyTree(ctx, dir)
	if err != nil {
		return err
	}
	var rows strings.Builder
	caught := map[string]int{}
	chosen := 0
	for _, f := range faults {
		if len(prefixes) > 0 && !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(f.name, p) }) {
			continue
		}
		chosen++
		start := time.Now()
		by, err := tree.try(ctx, f, rungs)
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		caught[by.rung]++
		fmt.Printf("%-45s %-9s %s (%.0f s)\n", f.name, by.rung, by.test, time.Since(start).Seconds())
		fmt.Fprintf(&rows, "| %s | %s | %s | %s |\n", f.name, f.why, by.rung, by.test)
	}
	summary := fmt.Sprintf("%d faults: ", chosen)
	for _, r := range ladder {
		summary += fmt.Sprintf("%d caught by the %s rung, ", caught[r.name], r.name)
	}
	summary += fmt.Sprintf("%d not caught", caught[""])
	fmt.Println(summary)
	if len(prefixes) > 0 {
		return nil
	}
	head := "# Who catches what\n\n`go run ./test/faults` makes each fault of [faults.txt](faults.txt) in a copy of the tree and climbs the ladder\n" +
		"until a test fails. " + time.Now().Format(time.DateOnly) + ": " + summary + ".\n\n| fault | what goes wrong | rung | first test that fails |\n|---|---|---|---|\n"
	return os.WriteFile(table, []byte(head+rows.String()), 0o644)
}

// tree is a copy of the module.
type tree string

// copyTree copies the files that git knows or would add.
func copyTree(ctx context.Context, dir string) (tree, error) {
	names, err := exec.CommandContext(ctx, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		return "", fmt.Errorf("git ls-files: %w", err)
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(names), "\x00"), "\x00") {
		if err := copyFile(name, filepath.Join(dir, name)); err != nil && !os.IsNotExist(err) { // deleted, but not yet for git
			return "", err
		}
	}
	return tree(dir), nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, info.Mode())
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

// catch says who caught a fault. The zero catch is nobody.
type catch struct{ rung, test string }

// try makes a fault, runs the tests, and undoes it.
func (d tree) try(ctx context.Context, f fault, rungs []string) (by catch, err error) {
	path := filepath.Join(string(d), f.file)
	before, err := os.ReadFile(path)
	if err != nil {
		return by, err
	}
	after, err := f.apply(string(before))
	if err != nil {
		return by, err
	}
	if err := os.WriteFile(path, []byte(after), 0o644); err != nil {
		return by, err
	}
	defer func() {
		if restore := os.WriteFile(path, before, 0o644); err == nil {
			err = restore
		}
	}()
	for _, r := range ladder {
		if !slices.Contains(rungs, r.name) {
			continue
		}
		for _, p := range f.tests {
			test, err := d.test(ctx, p, r.flags)
			if err != nil {
				return by, err
			}
			if test != "" {
				return catch{r.name, "`" + strings.TrimPrefix(p, "./") + "` " + test}, nil
			}
		}
	}
	return by, nil
}

var (
	failed = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)
	died   = regexp.MustCompile(`(?m)^(panic: .*|fatal error: .*|FAIL\s.*)$`)
)

// test runs the tests of a package and returns the first that fails, or what ended them.
func (d tree) test(ctx context.Context, pkg string, flags []string) (string, error) {
	// -trimpath lets the copy share the build cache with later copies.
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-trimpath", "-vet=off", "-failfast", "-count=1", "-timeout=5m", pkg}, flags...)...)
	cmd.Dir = string(d)
	out, err := cmd.CombinedOutput()
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err == nil:
		return "", nil
	case strings.Contains(string(out), "flag provided but not defined: -long"): // the package is on the first rung alone
		return "", nil
	case strings.Contains(string(out), "[build failed]") || strings.Contains(string(out), "[setup failed]"):
		return "", fmt.Errorf("go test %s:\n%s", pkg, out)
	}
	if m := failed.FindSubmatch(out); m != nil {
		return string(m[1]), nil
	}
	if m := died.Find(out); m != nil {
		return strings.ReplaceAll(string(m), "|", "\\|"), nil
	}
	return "", fmt.Errorf("go test %s: %w\n%s", pkg, err, out)
}
