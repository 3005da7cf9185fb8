package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// programs are what scenarios run.
var programs = []string{"./cmd/golaunch", "./cmd/goddp", "./test/chaos/worker"}

// adopt copies what scenarios run, built before, from one folder into the new
// folder dir.
func adopt(from, dir string) (binaries, error) {
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

// moduleRoot is where the product's source is.
func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("go list -m: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// build builds what scenarios run into the new folder dir: a mutant, or, for
// nil, the product as it is.
func build(ctx context.Context, root, dir string, m *mutant) (binaries, error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	what := "the product"
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

// buildAll builds the product into the new folder dir, and each mutant into a folder
// below it.
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
