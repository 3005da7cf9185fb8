package handshake

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/goddp/goddp/internal/jobenv"
)

// Remedy is the advice for processes that do not belong to the same job, or should not.
const Remedy = "give all processes of one job the same " + jobenv.JobIDVar + ", and each job another one, or another MASTER_PORT"

// A Job holds the properties on which the processes of a job must agree. The zero value
// agrees with every job.
type Job struct {
	ID      string // the job's id; "" if the environment holds none
	Program string // identifies the executable; "" if ID is set
	Args    string // the program's arguments; "" if ID is set
	World   int    // number of ranks; 0 if not known
}

// JobFromEnv returns the job of this process. world is its number of ranks.
func JobFromEnv(world int) Job {
	if id := idFromEnv(os.Getenv); id != "" {
		return Job{ID: id, World: world}
	}
	return Job{Program: program(), Args: Arguments(os.Args[1:]), World: world}
}

// idFromEnv returns the job's id, or "". torchrun uses "none" for a job without an id. Under
// Slurm, every step of an allocation is a job.
func idFromEnv(getenv func(string) string) string {
	if id := getenv(jobenv.JobIDVar); id != "" {
		return short(id)
	}
	if id := getenv(jobenv.RunIDVar); id != "" && id != "none" {
		return short(id)
	}
	if id := getenv("SLURM_JOB_ID"); id != "" {
		if step := getenv("SLURM_STEP_ID"); step != "" {
			id += "." + step
		}
		return short("slurm " + id)
	}
	if id := cmp.Or(getenv("PBS_JOBID"), getenv("LSB_JOBID")); id != "" {
		return short("batch " + id)
	}
	return ""
}

// program identifies this process's executable by its size and a hash of its first part,
// which holds the linker's build id. Copies on other hosts have the same value.
var program = sync.OnceValue(func() string {
	path, err := os.Executable()
	if err != nil {
		return ""
	}
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	const headSize = 32 << 10
	h := sha256.New()
	if _, err := io.CopyN(h, f, headSize); err != nil && err != io.EOF {
		return ""
	}
	return fmt.Sprintf("%x, %d bytes", h.Sum(nil)[:8], info.Size())
})

// Arguments returns the arguments of a program as a text that can be printed and compared. The text has
// at most 1 KiB. For longer arguments it holds their beginning and a hash.
func Arguments(args []string) string {
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = a
		if a == "" || strings.ContainsAny(a, " \t\n\"'\\") {
			quoted[i] = strconv.Quote(a)
		}
	}
	return short(strings.Join(quoted, " "))
}

// maxText is the longest text in a message, in bytes.
const maxText = 1 << 10

// short makes text fit into a message. It makes text printable. If text is longer than
// maxText, short returns its beginning and a hash.
func short(text string) string {
	clean := printable(text)
	if len(clean) <= maxText {
		return clean
	}
	sum := sha256.Sum256([]byte(text))
	end := "... (" + hex.EncodeToString(sum[:8]) + ")"
	return strings.ToValidUTF8(clean[:maxText-len(end)], "") + end
}

// printable replaces characters of text that would disturb a log by question marks.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}

// Compare returns nil if processes with these two values belong to the same job, and
// otherwise a [*DifferentJobError].
func (j Job) Compare(other Job) error {
	if j == (Job{}) || other == (Job{}) {
		return nil
	}
	differ := func(what, ours, others string) error {
		return &DifferentJobError{What: what, Own: ours, Other: others}
	}
	switch {
	case j.ID != other.ID:
		return differ("job id", quoteID(j.ID), quoteID(other.ID))
	case j.Program != other.Program:
		return differ("program", j.Program, other.Program)
	case j.Args != other.Args:
		return differ("arguments", fmt.Sprintf("[%s]", j.Args), fmt.Sprintf("[%s]", other.Args))
	case j.World > 0 && other.World > 0 && j.World != other.World:
		return differ(worldSize, strconv.Itoa(j.World), strconv.Itoa(other.World))
	}
	return nil
}

// worldSize is the name of the property World in errors. Two processes that differ only in World may well belong
// to one job.
const worldSize = jobenv.WorldSizeVar

func quoteID(id string) string {
	if id == "" {
		return "none"
	}
	return strconv.Quote(id)
}

// A DifferentJobError says that two processes belong to different jobs.
type DifferentJobError struct {
	What       string // the property that differs
	Own, Other string
	By         Process // the other process
}

func (e *DifferentJobError) Error() string {
	if e.What == worldSize {
		return fmt.Sprintf("%s is %s here and %s in %v: set the same on all ranks; or, if these are two jobs, give each its own MASTER_PORT", e.What, e.Own, e.Other, e.By)
	}
	return fmt.Sprintf("%v belongs to another job: %s %s here, %s there: %s", e.By, e.What, e.Own, e.Other, Remedy)
}
