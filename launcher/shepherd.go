package launcher

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
)

// shepherdVar marks a process that is to be a shepherd, and names its job.
const shepherdVar = "GODDP_SHEPHERD_OF"

// shepherdLimit is how long a shepherd tries to kill what an agent left. A
// process stuck in a driver may take a minute to die.
const shepherdLimit = 2 * time.Minute

// canShepherd is set by ShepherdMain: starting this executable again is safe
// only if its main asks first whether it is a shepherd.
var canShepherd atomic.Bool

// ShepherdMain must be called first in main, or in TestMain, of a program that
// calls [Run]. In a process that Run started as a shepherd it does not return;
// elsewhere it does so at once, and lets Run start shepherds.
func ShepherdMain() {
	jobID := os.Getenv(shepherdVar)
	if jobID == "" {
		canShepherd.Store(true)
		return
	}
	// Whoever stops a whole machine signals this process too. It is the last to leave.
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM)
	groups, folders := readMessages(os.Stdin)
	killAll(jobID, groups, 100*time.Millisecond, shepherdLimit)
	for _, folder := range folders {
		_ = os.RemoveAll(folder) // nobody is left to be told of an error
	}
	os.Exit(0)
}

// readMessages follows what the agent says until the pipe closes: each line is
// a process group to add, negative to take out again, or a quoted folder. It
// returns the groups that then exist and the folders.
func readMessages(pipe io.Reader) (groups []int, folders []string) {
	lines := bufio.NewScanner(pipe)
	for lines.Scan() {
		if folder, err := strconv.Unquote(lines.Text()); err == nil {
			folders = append(folders, folder)
			continue
		}
		pgid, err := strconv.Atoi(lines.Text())
		switch {
		case err != nil: // cut off in the middle of a write
		case pgid > 0:
			groups = append(groups, pgid)
		default:
			groups = slices.DeleteFunc(groups, func(g int) bool { return g == -pgid })
		}
	}
	return groups, folders
}

// shepherd is the agent's end of the process that outlives it.
//
// The end of the pipe always means that the agent is dead: an agent that ends
// its job has swept up itself, and then kills the shepherd before it lets go of
// the pipe. A nil *shepherd does nothing.
type shepherd struct {
	pipe *os.File // write end
	cmd  *exec.Cmd
}

// startShepherd returns as soon as the process exists, which takes less than a
// millisecond; it initialises itself beside the workers, and reads then what it
// has been told. It returns nil where there can be no shepherd.
func startShepherd(jobID string) *shepherd {
	if !canShepherd.Load() {
		return nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil
	}
	s := &shepherd{pipe: w}
	s.cmd = exec.Command(ownExecutable())
	s.cmd.Args[0] = "golaunch-shepherd"
	// It inherits neither the job's outputs, which somebody may be reading to
	// the end, nor the terminal's session, nor an outer job's id.
	s.cmd.Env = []string{shepherdVar + "=" + jobID}
	s.cmd.Dir = "/"
	s.cmd.Stdin = r
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = s.cmd.Start()
	r.Close()
	if err != nil {
		w.Close()
		return nil
	}
	return s
}

// add puts a process group in the shepherd's care, remove takes it out.
func (s *shepherd) add(pgid int)    { s.send(strconv.Itoa(pgid)) }
func (s *shepherd) remove(pgid int) { s.send(strconv.Itoa(-pgid)) }

// discard makes the shepherd remove a folder, if it comes to that.
func (s *shepherd) discard(folder string) { s.send(strconv.Quote(folder)) }

func (s *shepherd) send(message string) {
	if s != nil {
		// A shepherd that somebody killed is no reason to end the job.
		_, _ = s.pipe.WriteString(message + "\n")
	}
}

// dismiss ends the shepherd without letting it act.
func (s *shepherd) dismiss() {
	if s == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_, _ = s.cmd.Process.Wait()
	s.pipe.Close()
}
