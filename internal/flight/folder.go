package flight

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/goddp/goddp/internal/files"
	"github.com/goddp/goddp/internal/jobenv"
)

// Folder returns the folder for the dumps of a job: the chosen one or, if that is empty, the system's
// temporary folder. If all users can write into that folder, Folder returns a subfolder for this
// user and job.
func Folder(chosen, job string) string {
	if chosen != "" && !files.IsShared(chosen) {
		return chosen
	}
	job = strings.ReplaceAll(job, "/", "_") // a user may give the job any id
	return filepath.Join(cmp.Or(chosen, os.TempDir()), fmt.Sprintf("goddp_flight_%d_%s", os.Getuid(), job))
}

// Dir returns the Folder of this process's job. It creates the folder, unless the user chose the
// folder, which [Dump.Write] creates.
func Dir(s jobenv.Flight) (string, error) {
	// If the launcher does not name the job, the ranks use the id of their common parent process.
	dir := Folder(s.Dir, cmp.Or(s.JobID, "of_"+strconv.Itoa(os.Getppid())))
	if dir == s.Dir {
		return dir, nil
	}
	if err := files.MakePrivate(dir); err != nil {
		return "", fmt.Errorf("flight: %w", err)
	}
	return dir, nil
}
