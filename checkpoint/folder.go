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
	// tempPrefix is the prefix of the names of incomplete and of partly deleted checkpoints.
	tempPrefix = ".tmp-"
	// maxStep is the largest step that folderName matches.
	maxStep = 999_999_999_999_999_999
)

// folderName matches the name of a checkpoint of a step. If a step has several checkpoints, the
// names of the later ones end in a dot and a number.
var folderName = regexp.MustCompile(`^step-(\d{8,18})(\.\d+)?$`)

// Info describes one checkpoint in a folder.
type Info struct {
	Path     string
	Step     int
	Latest   bool      // whether the file latest names it
	Best     bool      // whether it is the last one that was the best when it was saved
	Manifest *Manifest // nil if Err is not nil
	Err      error     // why the manifest could not be read
}

// List lists the checkpoints in a folder, the last saved first. Checkpoints whose manifest cannot be read
// are at the end. List does not read the tensors; [Verify] does.
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
		info.Step, _ = strconv.Atoi(parts[1]) // folderName allows at most 18 digits, which fit an int
		info.Manifest, info.Err = readManifest(disk{}, info.Path)
		all = append(all, info)
	}
	slices.SortStableFunc(all, func(a, b Info) int {
		return cmp.Or(cmp.Compare(b.number(), a.number()), cmp.Compare(b.Step, a.Step))
	})
	if i := slices.IndexFunc(all, func(i Info) bool { return i.Manifest != nil && i.Manifest.Best }); i >= 0 {
		all[i].Best = true
	}
	return all, nil
}

// Best returns the path of the best checkpoint in a folder, for [LoadWeights] for example: the last one that was saved with
// State.Best.
func Best(dir string) (string, error) {
	all, err := List(dir)
	if err != nil {
		return "", err
	}
	for _, info := range all {
		if info.Best {
			return info.Path, nil
		}
	}
	return "", fmt.Errorf("checkpoint: %s has no checkpoint that was saved as the best, among %d", dir, len(all))
}

// number returns the manifest's number, which is at least 1, or 0 if the manifest cannot be read.
func (i *Info) number() int {
	if i.Manifest == nil {
		return 0
	}
	return i.Manifest.Number
}

// readLatest returns the name in the file latest of a folder, "" if there is no such file.
func readLatest(dir string) (string, error) {
	data, err := readFile(disk{}, filepath.Join(dir, latestName), 4<<10)
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

// newName returns a name for a checkpoint of a step that no checkpoint in the folder has.
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
