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
	// tempPrefix begins the names of what is not yet a checkpoint, or no longer one.
	tempPrefix = ".tmp-"
)

// folderName matches the name of a step's checkpoint. The name of a second one of the same step
// ends in a dot and a number.
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
		info.Manifest, info.Err = readManifest(disk{}, info.Path)
		all = append(all, info)
	}
	slices.SortStableFunc(all, func(a, b Info) int {
		return cmp.Or(cmp.Compare(b.number(), a.number()), cmp.Compare(b.Step, a.Step))
	})
	return all, nil
}

// number is that of the manifest, 1 or more; 0 without a readable manifest.
func (i *Info) number() int {
	if i.Manifest == nil {
		return 0
	}
	return i.Manifest.Number
}

// readLatest returns the name in the file latest of a folder, "" if there is no such file.
func readLatest(dir string) (string, error) {
	data, err := readFile(disk{}, filepath.Join(dir, latestName))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("checkpoint: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

// candidates returns the checkpoints to resume from, in order: the one that latest names, then the
// others as List orders them.
func candidates(dir string) ([]Info, error) {
	all, err := List(dir)
	if i := slices.IndexFunc(all, func(i Info) bool { return i.Latest }); i > 0 {
		latest := all[i]
		copy(all[1:i+1], all[:i])
		all[0] = latest
	}
	return all, err
}

// newName returns a name for a step's checkpoint that no other one has.
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
