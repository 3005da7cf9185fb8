// Package store is the bootstrap key-value store of a job: the place where
// processes that know nothing of each other but one address exchange the few
// hundred bytes that they need before they can talk directly.
//
// # What there is
//
// [Store] is the interface. Its implementations share one table type, so they
// agree on every detail:
//
//   - [Listen] starts a [Server], which owns a table and serves it on TCP.
//   - [Dial] connects a [Client] to a server, ours or PyTorch's.
//   - [Server.Local] returns a handle on a server's table for the process that
//     hosts it. [NewLocal] makes a table without a server, for ranks that are
//     goroutines of one process.
//   - [Prefix] is a view of any Store in which every key starts with "prefix/".
//
// A value, once written, stays until it is overwritten or deleted: the store
// lives as long as its server and is neither replicated nor written to disk.
//
// # Who is served
//
// A [Server] serves a connection that it has admitted:
//
//   - A [Client] with a [Member] introduces itself. Both ends say of which job they
//     are, compare that, and prove to each other that they have the job's secret,
//     which is not sent. What differs is an error of both ([HandshakeError]).
//   - A client that does not, such as PyTorch's, is served if the kernel says that
//     it is a process of the same user on this host. Where the system cannot tell,
//     as on macOS, that is any process that comes over loopback.
//   - Without a secret, members are served on the second condition too, and Listen
//     refuses an address that other hosts can reach ([ErrExposed]).
//   - [Member].Insecure serves anybody.
//
// The handshake travels in COMPARE_SET requests on a key that no caller can have,
// with the message as both values. A server of PyTorch's returns such a value and
// stores nothing, by which a Client knows it ([Client.IsPyTorchStore]). After the
// handshake nothing is encrypted or authenticated. SECURITY.md has the whole.
//
// # Waiting
//
// Get, MultiGet and Wait end when their keys exist, when the context ends, or
// when the handle or the server goes away. Nothing polls: a waiter is parked in
// the table under one missing key and woken by whoever creates that key.
//
// Errors are *[OpError], which names the operation, the keys, the server and
// how long the call took, and wraps one of the context's error and cause,
// [ErrServerLost], [ErrClosed], [ErrLimit], [ErrNotInteger] or a [*HandshakeError].
//
// # Limits
//
// What a server holds for its clients is counted by what it takes in memory: a
// list of many short keys takes several times its bytes on the wire. [Limits]
// bound one request, one wait and the table, and these rules bound what clients
// hold together:
//
//   - Clients that have proved to belong to the job, and all others, have limits
//     of their own on connections and on memory in flight: [ServerOptions] and its
//     Unproven. The others may fill the table up to [Quota].TableBytes; the rest of
//     [Limits].TableBytes is kept for the job.
//   - Each connection has 16 KiB for its requests and replies, whatever others
//     hold. What it needs beyond comes from the memory in flight that it shares. A
//     request that finds none ends its connection, and no other.
//   - A connection that has not asked for anything has a slot among the silent ones.
//     If these are used up, or file descriptors are, the median of them by age is
//     closed. So silence keeps nobody out, and a flood leaves the connections alone
//     that were there before it.
//   - So it is with connections that are not known to come from this user, until
//     they have proved to belong to the job: there are 256 of them at most.
//   - Connections use at most four fifths of the process's file descriptors.
//
// Whom the server rejects is logged at once, and then at most once a second, with
// the number of rejections.
//
// # The wire
//
// The server speaks the protocol of PyTorch's TCPStore, so that PyTorch workers
// can use it and Go workers can join a job whose store PyTorch hosts. It has
// two dialects. Integers are little-endian; a string is its length (u64) and
// its bytes; "keys" is a count (u64) and as many strings.
//
//	code 1.x  code 2.x  request      body                       reply
//	-         0         VALIDATE     u32 0x3C85F7CE             -
//	0         1         SET          key, value                 -
//	1         2         COMPARE_SET  key, expected, desired     value
//	2         3         GET          key                        value, empty if absent
//	3         4         ADD          key, i64                   i64, the sum
//	4         5         CHECK        keys                       u8, 0 all exist, 1 not
//	5         6         WAIT         keys                       u8 0, once all exist
//	6         7         GETNUMKEYS   -                          i64
//	8         8         DELETE_KEY   key                        i64, 1 deleted, 0 absent
//	9         9         APPEND       key, value                 -
//	10        10        MULTI_GET    keys                       a value for each
//	11        11        MULTI_SET    count, (key, value)...     -
//	12        12        CANCEL_WAIT  -                          u8 1
//	-         13        PING         u32                        the same u32
//
// A 2.x client opens with VALIDATE, a 1.x client with any request. The byte 0
// is VALIDATE in one and SET in the other, so the four bytes behind it decide:
// as the length of a key the magic number would be a key of a gigabyte.
// PyTorch 1.13 and 2.0 speak 1.x (2.0 added codes 9 to 12); code 7 was its
// WATCH_KEY. That request, the queues of recent 2.x (codes 14 to 16) and its
// LIST_KEYS and BARRIER (17, 18) are refused: there is no error reply in the
// protocol, so a server refuses by closing the connection and logging why.
//
// Three habits of the PyTorch clients shape the server. A 1.x client opens a
// second connection that never says a word and spins on a CPU if it is closed:
// the deadline of a frame therefore starts with its first byte. A 1.x client
// whose wait timed out cannot take it back and goes on using the connection: any
// request therefore drops the wait parked on its connection. (A key that comes
// between the time-out and that request still shifts all later replies by one;
// only dialect 2 can prevent it.) And a client of either dialect that joins with
// wait_for_workers adds one to the key "init/": see [ClientOptions.Announce].
//
// PyTorch prefixes each key of its callers with "/". The Client and the local store
// do the same, in one place, and no other code sees that slash: the key "k" here is
// the key "k" there. NumKeys counts all that the table holds, "init/" too.
package store
