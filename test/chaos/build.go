package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// programs are the packages of the programs that scenarios run.
var programs = []string{"./cmd/golaunch", "./cmd/goddp", "./test/chaos/worker", "./test/survive/survivor"}

// copyBinaries copies programs that were built before into the new folder dir.
func copyBinaries(from, dir string) (binaries, error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	for _, p := range programs {
		name := filepath.Base(p)
		data, err := os.ReadFile(filepath.Join(from, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o755)
		}
		if err != nil {
			return "", err
		}
	}
	return binaries(dir), nil
}

// moduleRoot returns the folder of goddp's source.
func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("go list -m: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// build builds the programs that scenarios run into the new folder dir: with mutant m, or, if m is
// nil, as they are.
func build(ctx context.Context, root, dir string, m *mutant) (binaries, error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	what := "goddp"
	args := []string{"build", "-ldflags=-s -w", "-o", dir + string(filepath.Separator)}
	if m != nil {
		overlay, err := m.overlay(root, dir)
		if err != nil {
			return "", err
		}
		what = fmt.Sprintf("mutant %q", m.name)
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, programs...)...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w\n%s", what, err, out)
	}
	return binaries(dir), nil
}

// buildAll builds goddp into the new folder dir, and each mutant into a folder below it.
func buildAll(ctx context.Context, root, dir string) error {
	if _, err := build(ctx, root, dir, nil); err != nil {
		return err
	}
	for i := range mutants {
		if _, err := build(ctx, root, mutantFolder(dir, i), &mutants[i]); err != nil {
			return err
		}
	}
	return nil
}

func mutantFolder(dir string, i int) string { return filepath.Join(dir, fmt.Sprint("mutant", i)) }
