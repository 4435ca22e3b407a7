// A tab of Firefox driven from another process: a step a line on standard input, an answer a line on standard output.
//
// Started by tests/ui/test_firefox.py, which says what the steps are.
import { createInterface } from 'node:readline'
import { pathToFileURL } from 'node:url'

const [, , puppeteerPath, binary] = process.argv
const { default: puppeteer } = await import(pathToFileURL(`${puppeteerPath}/lib/esm/puppeteer/puppeteer-core.js`))

const browser = await puppeteer.launch({ browser: 'firefox', executablePath: binary, headless: true })
const page = await browser.newPage()
page.setDefaultTimeout(20_000)
const complaints = []
const addresses = []
page.on('console', (said) => { if (said.type() === 'error') complaints.push(said.text()) })
page.on('pageerror', (error) => complaints.push(String(error)))
page.on('request', (request) => addresses.push(request.url()))

const withText = (selector, text) => [...document.querySelectorAll(selector)].some((one) => one.textContent.includes(text))

// Puppeteer's waitForFunction uses eval in the page, which the console's content policy forbids.
async function until(condition, ...given) {
  for (const deadline = Date.now() + 20_000; Date.now() < deadline; await new Promise((done) => setTimeout(done, 50))) {
    if (await page.evaluate(condition, ...given).catch(() => false)) return // it is navigating
  }
  throw new Error(`did not come: ${given.join(', ')}`)
}

const steps = {
  open: (address) => page.goto(address),
  async click(selector, text) {
    await until(withText, selector, text)
    await page.evaluate((selector, text) => {
      [...document.querySelectorAll(selector)].find((one) => one.textContent.includes(text)).click()
    }, selector, text)
  },
  async type(selector, text) {
    await until(withText, selector, '')
    await page.type(selector, text)
  },
  see: (selector, text) => until(withText, selector, text),
  count: (selector, count) => until((s, n) => document.querySelectorAll(s).length === n, selector, count),
  complaints: (address) => [
    ...complaints,
    ...addresses.filter((one) => /^(http|ws)/.test(one) && !one.startsWith(address)).map((one) => `a request to ${one}`),
  ],
}

for await (const line of createInterface({ input: process.stdin })) {
  const [step, ...given] = JSON.parse(line)
  let answer
  try {
    const result = await steps[step](...given)
    answer = step === 'complaints' ? { result } : {}
  } catch (error) {
    answer = { error: String(error) }
  }
  process.stdout.write(JSON.stringify(answer) + '\n')
}
await browser.close()
