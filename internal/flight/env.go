package flight

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/goddp/goddp/internal/atomicfile"
)

// The variables of this package. Where PyTorch has one for the same purpose,
// it is read if this is not set.
const (
	// EntriesVar is the number of entries of the ring; 0 records nothing.
	EntriesVar = "GODDP_FLIGHT_ENTRIES"
	// DirVar is the folder that dumps are written into.
	DirVar = "GODDP_FLIGHT_DIR"
	// OnFailureVar, if 0, keeps a failure from being dumped.
	OnFailureVar = "GODDP_DUMP_ON_FAILURE"
	// FDVar is the descriptor of the memory that the launcher made.
	FDVar = "GODDP_FLIGHT_FD"
)

// DefaultEntries is the size of the ring where nothing else is said.
const DefaultEntries = 2000

// maxEntries bounds the ring: about 2 GB.
const maxEntries = 1 << 24

// Settings are what the environment says about recording.
type Settings struct {
	Entries       int  // of the ring; 0: record nothing
	DumpOnFailure bool // write dumps when a group fails

	dir, prefix string
	job, run    string // as in Identity
}

// ReadSettings reads the settings from an environment, such as [os.LookupEnv].
// Its error names every variable that makes no sense.
func ReadSettings(lookup func(string) (string, bool)) (Settings, error) {
	s := Settings{Entries: DefaultEntries, DumpOnFailure: true}
	var errs []error
	first := func(names ...string) (name, value string) {
		for _, name := range names {
			if v, ok := lookup(name); ok && v != "" {
				return name, v
			}
		}
		return "", ""
	}
	if name, value := first(EntriesVar, "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"); name != "" {
		n, err := strconv.Atoi(value)
		if err != nil || n < 0 || n > maxEntries {
			errs = append(errs, fmt.Errorf("%s is %q, not a number from 0 to %d", name, value, maxEntries))
		}
		s.Entries = n
	}
	if name, value := first(OnFailureVar, "TORCH_NCCL_DUMP_ON_TIMEOUT"); name != "" {
		on, err := strconv.ParseBool(value)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s is %q, not 1 or 0", name, value))
		}
		s.DumpOnFailure = on
	}
	_, s.dir = first(DirVar)
	_, s.prefix = first("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
	_, s.job = first("GODDP_JOB_ID")
	_, s.run = first("TORCHELASTIC_RUN_ID")
	if len(errs) > 0 {
		return Settings{}, fmt.Errorf("flight: %w", errors.Join(errs...))
	}
	return s, nil
}

// Chosen is the folder for dumps that the environment names, or "". PyTorch's
// variables name a prefix of files; here it is that of the folder, so that the
// dumps of both stay apart.
func (s Settings) Chosen() string {
	if s.dir != "" {
		return s.dir
	}
	return strings.TrimRight(s.prefix, "_-./")
}

// Folder is where the dumps of a job go: Chosen, or else the system's temporary folder.
// In a folder in which anybody can make files they go into one of this user's and the
// job's.
func (s Settings) Folder(job string) string {
	dir := s.Chosen()
	if dir != "" && !atomicfile.IsShared(dir) {
		return dir
	}
	return filepath.Join(cmp.Or(dir, os.TempDir()), fmt.Sprintf("goddp_flight_%d_%s", os.Getuid(), job))
}

// Dir is the Folder of this process's job. It makes the folder, unless that is Chosen,
// which [Dump.Write] makes.
func (s Settings) Dir() (string, error) {
	// Without a launcher that names the job, the ranks have a parent in common.
	dir := s.Folder(cmp.Or(s.job, "of_"+strconv.Itoa(os.Getppid())))
	if dir == s.Chosen() {
		return dir, nil
	}
	if err := atomicfile.MakePrivate(dir); err != nil {
		return "", fmt.Errorf("flight: %w", err)
	}
	return dir, nil
}
