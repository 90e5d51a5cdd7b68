// What a call is expected to take, and how the terms of it come together: for every kind of kernel
// whose lines hold measured numbers, so that `scaled-mm tune` can fit them.
#pragma once

#include <cmath>

namespace scaled_mm {

// With the operands in device memory, in microseconds.
struct Prediction {
  double us = 0;      // all together
  double memory = 0;  // reading and writing device memory
  double busy = 0;    // whatever else binds: tensor cores or L2
  double waves = 0;   // what nothing hides: blocks that start when others have ended, epilogues
  double least = 0;   // tensor cores at full clock: `busy` is no less, however fast the kernel
};

// What is measured of a kernel on a GPU.
struct Fit {
  double fixed_us = 0;  // of a call, whatever its size
  double rate = 1;  // how fast it is where tensor cores or L2 bind, relative to the model's rates
};

// Device memory runs beside whatever else binds. The two add up like the sides of a very flat
// triangle.
inline double beside(double memory, double busy) {
  const double m = memory * memory, b = busy * busy;
  return std::sqrt(std::sqrt(m * m + b * b));  // std::hypot would ask for glibc 2.35
}

// us = fixed_us + (memory^4 + max(busy / rate, least)^4)^(1/4) + waves; scaled_mm/tuning/fit.py has
// the same.
inline Prediction prediction_of(const Fit& fit, double memory, double busy, double waves,
                                double least = 0) {
  const double us = fit.fixed_us + beside(memory, std::fmax(busy / fit.rate, least)) + waves;
  return {us, memory, busy, waves, least};
}

}  // namespace scaled_mm
