package flight

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/goddp/goddp/internal/files"
	"github.com/goddp/goddp/internal/jobenv"
)

// DefaultEntries is the default size of the ring.
const DefaultEntries = 2000

// maxEntries is the largest size of the ring, which takes about 2 GB.
const maxEntries = 1 << 24

// Settings are the settings of the flight recorder, as the environment gives them.
type Settings struct {
	Entries       int  // size of the ring; 0 records nothing
	DumpOnFailure bool // write dumps when a group fails

	dir, prefix string
	job, run    string // as the fields of Identity
}

// ReadSettings reads the settings from an environment. lookup is a function such as [os.LookupEnv].
// The error names every variable with an invalid value.
func ReadSettings(lookup func(string) (string, bool)) (Settings, error) {
	s := Settings{Entries: DefaultEntries}
	var errs []error
	first := func(names ...string) (name, value string) {
		for _, name := range names {
			if v, ok := lookup(name); ok && v != "" {
				return name, v
			}
		}
		return "", ""
	}
	if name, value := first(jobenv.FlightEntriesVars...); name != "" {
		n, err := strconv.Atoi(value)
		if err != nil || n < 0 || n > maxEntries {
			errs = append(errs, fmt.Errorf("%s is %q, not a number from 0 to %d", name, value, maxEntries))
		}
		s.Entries = n
	}
	getenv := func(name string) string {
		value, _ := lookup(name)
		return value
	}
	var err error
	if s.DumpOnFailure, err = jobenv.Bool(getenv, true, jobenv.DumpOnFailureVars...); err != nil {
		errs = append(errs, err)
	}
	_, s.dir = first(jobenv.FlightDirVar)
	_, s.prefix = first(jobenv.FlightPrefixVars...)
	_, s.job = first(jobenv.JobIDVar)
	_, s.run = first(jobenv.RunIDVar)
	if len(errs) > 0 {
		return Settings{}, fmt.Errorf("flight: %w", errors.Join(errs...))
	}
	return s, nil
}

// Chosen returns the folder for dumps that the environment names, or "". PyTorch's variables name a
// prefix of file names. Here it is the folder's name, so that the dumps of both are in different
// places.
func (s Settings) Chosen() string {
	if s.dir != "" {
		return s.dir
	}
	return strings.TrimRight(s.prefix, "_-./")
}

// Folder returns the folder for the dumps of a job: Chosen or, if that is empty, the system's
// temporary folder. If all users can write into that folder, Folder returns a subfolder for this
// user and job.
func (s Settings) Folder(job string) string {
	dir := s.Chosen()
	if dir != "" && !files.IsShared(dir) {
		return dir
	}
	return filepath.Join(cmp.Or(dir, os.TempDir()), fmt.Sprintf("goddp_flight_%d_%s", os.Getuid(), job))
}

// Dir returns the Folder of this process's job. It creates the folder, unless the folder is Chosen,
// which [Dump.Write] creates.
func (s Settings) Dir() (string, error) {
	// If the launcher does not name the job, the ranks use the id of their common parent process.
	dir := s.Folder(cmp.Or(s.job, "of_"+strconv.Itoa(os.Getppid())))
	if dir == s.Chosen() {
		return dir, nil
	}
	if err := files.MakePrivate(dir); err != nil {
		return "", fmt.Errorf("flight: %w", err)
	}
	return dir, nil
}
