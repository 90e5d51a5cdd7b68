// A wheel serves every Linux that torch's own wheels serve, down to glibc 2.28. libstdc++'s headers
// ask for a variable of glibc 2.32, which says that a process has one thread; shared counts then do
// without atomic instructions. Here it is always false, and hidden.
extern "C" {
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;
}
