package launcher_test

import (
	"context"
	"fmt"

	"github.com/goddp/goddp/launcher"
)

// Two workers run, and rank 1 fails. Since main calls [launcher.ReaperMain], the program
// can also run as the job's reaper.
func ExampleRun() {
	_, err := launcher.Run(context.Background(), &launcher.Config{
		Args:    []string{"sh", "-c", "exit $RANK"},
		Workers: 2,
	})
	fmt.Println("exit code", launcher.ExitCode(err))
	// Output: exit code 1
}
