// The kernels of Hopper: what each is cut into, and what was measured of it on an H200
// (docs/tuning.md). One line is one file to compile, and one candidate of the choice.
// clang-format off
//  name               kernel,     tile M x N,                                          us, rate
ROW(stream_8x64,        stream,        8,  64,                                     2.16, 1.444)
ROW(stream_16x64,       stream,       16,  64,                                     2.29, 1.405)
ROW(stream_32x64,       stream,       32,  64,                                     2.53, 1.503)
ROW(stream_48x64,       stream,       48,  64,                                     2.82, 1.528)
ROW(stream_64x64,       stream,       64,  64,                                     2.88, 1.359)
ROW(stream_80x64,       stream,       80,  64,                                     3.44, 1.553)
ROW(stream_16x128,      stream,       16, 128,                                     4.10, 1.591)
ROW(stream_32x128,      stream,       32, 128,                                     4.22, 1.518)
ROW(stream_64x128,      stream,       64, 128,                                     4.67, 1.657)
ROW(stream_96x128,      stream,       96, 128,                                     4.42, 1.220)
ROW(stream_128x128,     stream,      128, 128,                                     4.88, 1.260)
ROW(stream_144x128,     stream,      144, 128,                                     4.58, 1.174)
ROW(stream_192x128,     stream,      192, 128,                                     3.85, 1.106)
//  name               kernel,     tile M x N x K, cluster, schedule,    swizzle,       us, rate
ROW(ping_64x128_2x1,   persistent,   64, 128, 128,  2, 1,   pingpong,    1,              3.14, 1.092)
ROW(ping_64x256_2x1,   persistent,   64, 256, 128,  2, 1,   pingpong,    1,              4.15, 0.976)
ROW(ping_128x128_2x1,  persistent,  128, 128, 128,  2, 1,   pingpong,    8,              1.84, 1.045)
ROW(ping_128x128_1x2,  persistent,  128, 128, 128,  1, 2,   pingpong,    8,              4.06, 1.001)
ROW(coop_128x256_1x1,  persistent,  128, 256, 128,  1, 1,   cooperative, 8,              2.61, 1.123)
// clang-format on
