// Package coordinator is how the ranks of a job tell each other everything that is no
// tensor: that they are there, where they can be reached, what they must have alike, why a
// group broke, and that they leave.
//
// Every rank has one connection to the coordinator for each Init. The coordinator is in the
// process of golaunch or, where the launcher is another one, of rank 0. It decides what broke a
// group first, and all ranks hear the same failure before any of them reports one. Groups
// from Split, the checks of debug modes and the parts of a backend are names and keys on that
// connection. They have no connections of their own. All ranks that a message names are
// numbered as in the job.
//
// # What ranks say
//
//	Join    I am there: my process, the options that all must have alike, a value
//	Gather  my value of this key, for the members of this group
//	Fail    this broke, or this is late: ask these ranks before you decide
//	Ack     I know, or this is what I know
//	Leave   I close this group, or the session, in good order
//	Watch   who has not given this key yet?
//	Alive   nothing else, every second
//
// # What the coordinator says
//
//	Gathered  the values of a key, when all members have given theirs
//	Asked     another rank reports this: what do you know?
//	Answered  what the ranks answered, to the one that reported
//	Failed    why the group broke
//	Settled   all ranks know
//	Leaving   these leave alone: tell when you do not need them any more
//	Left      all members have left
//	Watched   who has not
//
// # Which failure is the first
//
// The coordinator goes by what it hears first, with three rules, since what a rank meets is
// often the effect of what another one met.
//
//   - The end of a rank's connection, before it left the session, is that rank's death. It decides
//     at once.
//   - A report that names ranks, such as that the connection to rank 2 broke, is decided
//     once these have answered. Where rank 2 died, its end comes in place of its answer. Where it
//     failed itself, its own report was on its way before its answer, and takes the place of
//     the first one. Where it left, that is the failure.
//   - A deadline that passed tells little. Its reporter gets what all ranks are doing, and
//     says who is late. Any other failure takes its place meanwhile.
//
// A reporter that itself dies, or leaves, has its report decided. One that hangs is replaced by
// the next rank that wants to decide and says so twice.
//
// # What is decided
//
// Failed goes to all ranks, and each acknowledges it once nothing that it reports can miss
// it. When all have, or are lost, Settled goes to all. A rank aborts what its peers may be
// reading from after that only: what they read then is taken by none for the result of a call.
//
// A failure breaks all groups, unless the ranks joined with Apart. A group that is being made breaks
// alone.
//
// # Who is lost
//
// The end of a connection says that a process ended. The kernel says it of a host that has not
// answered for 20 seconds. A process that is suspended loses its connection after Options.Silence,
// which is long: others find it late before.
//
// A coordinator that is lost, or that has been silent for so long, is the failure of every rank,
// and names no rank. Ranks that cannot reach it can tell each other nothing. So a rank that has not
// heard of it for five intervals takes no call for done ([Group.Quiet]), and one that breaks its
// groups without the coordinator waits for six before it aborts ([Group.Settled]). A rank that has
// reported a failure, and has not heard of the coordinator for six, breaks them because of that.
//
// What has reached the process of a rank counts as told, read or not: a rank that was suspended
// takes no call for done that ended meanwhile because others aborted. In the coordinator's process
// that is also what other ranks have reported.
//
// Both ends count intervals in which they ran themselves. So a job that is suspended as a whole loses
// nobody.
//
// # Costs
//
// A death costs each rank three messages, a deadline five. Nothing but gathers grows with the
// square of the number of ranks: their values go from all members to all.
//
// # Structure
//
// [Core] decides all that, for one session: a pure state machine whose behaviour is written down as
// scenarios in testdata, and that a simulation runs through many schedules with faults. [Server]
// is the coordinator's end of the connections, [Client] a rank's. [Server.Local] connects ranks of the
// coordinator's process.
package coordinator
