// Package handshake opens the connections of a job: those between a store and its
// clients, and those between two ranks. Before anything else is said on a connection,
// each end learns who the other is, whether both are of one job, and, where the job
// has a secret, that the other end has it too.
//
// # The four messages
//
//	dialler                                listener
//	hello: who I am, nonce          →
//	                                ←      answer: who I am, nonce
//	proof: HMAC as the dialler      →
//	                                ←      accept: HMAC as the listener
//
// In place of an answer or an accept the listener may send a refusal, which says why.
// So both ends end with the same reason.
//
// Both proofs are HMAC-SHA256 under the key, over the direction and the hashes of hello
// and answer. The two messages hold a nonce of either end, the role, the rank and the
// job of each. So a proof is of use on one connection, in one direction, between these
// two ends: it can be neither replayed nor reflected, nor shown by another rank. The
// key is never sent. Without a secret the key is empty, and the proofs prove nothing.
//
// What follows on the connection is neither encrypted nor authenticated: whoever can
// change packets between two hosts can change the data.
//
// # One job or two
//
// [Job] is what the processes of one job agree on. [Job.Compare] compares the id that
// the environment gives the job; where it gives none, the program and its arguments;
// and the number of ranks.
//
// [Dialler] and [Listener] are the handshake without a connection: bytes in, bytes out.
// [Dial] and [Accept] perform it on one.
package handshake
