package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const (
	latestName = "latest"
	// tempPrefix begins the names of what is not a checkpoint yet, or no longer.
	tempPrefix = ".tmp-"
)

// folderName is the name of a step's checkpoint. A second one of the same step, saved while
// the first was there, has a dot and a number behind it.
var folderName = regexp.MustCompile(`^step-(\d{8,18})(\.\d+)?$`)

// An Info is one checkpoint in a folder.
type Info struct {
	Path     string
	Step     int
	Latest   bool      // the file latest names it
	Manifest *Manifest // nil if Err is not
	Err      error     // why the manifest could not be read
}

// List lists the checkpoints in a folder, the one that was saved last first, those without
// a readable manifest at the end. It reads no tensors: see [Verify].
func List(dir string) ([]Info, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	latest, err := readLatest(dir)
	if err != nil {
		return nil, err
	}
	var all []Info
	for _, e := range entries {
		parts := folderName.FindStringSubmatch(e.Name())
		if parts == nil || !e.IsDir() {
			continue
		}
		info := Info{Path: filepath.Join(dir, e.Name()), Latest: e.Name() == latest}
		info.Step, _ = strconv.Atoi(parts[1]) // 18 digits fit
		info.Manifest, info.Err = ReadManifest(info.Path)
		all = append(all, info)
	}
	slices.SortStableFunc(all, func(a, b Info) int {
		if a.Manifest == nil || b.Manifest == nil {
			return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(b.Step, a.Step))
		}
		return cmp.Or(cmp.Compare(b.Manifest.Number, a.Manifest.Number), cmp.Compare(b.Step, a.Step))
	})
	return all, nil
}

// rank is 0 for a checkpoint with a manifest and 1 for others.
func rank(i Info) int {
	if i.Manifest != nil {
		return 0
	}
	return 1
}

// readLatest is what the file latest in a folder names, "" if there is none.
func readLatest(dir string) (string, error) {
	data, err := os.ReadFile(filepath.Join(dir, latestName))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("checkpoint: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

// candidates are the checkpoints to resume from, in this order: the one that latest names,
// the others from the last saved on, and those whose manifest cannot be read.
func candidates(dir string) ([]Info, error) {
	all, err := List(dir)
	slices.SortStableFunc(all, func(a, b Info) int {
		switch {
		case a.Latest == b.Latest:
			return 0
		case a.Latest:
			return -1
		}
		return 1
	})
	return all, err
}

// newName is a name for a step's checkpoint that is not taken.
func newName(dir string, step int) (string, error) {
	first := fmt.Sprintf("step-%08d", step)
	for n := 0; ; n++ {
		name := first
		if n > 0 {
			name = fmt.Sprintf("%s.%d", first, n)
		}
		if _, err := os.Lstat(filepath.Join(dir, name)); errors.Is(err, os.ErrNotExist) {
			return name, nil
		} else if err != nil {
			return "", err
		}
	}
}
